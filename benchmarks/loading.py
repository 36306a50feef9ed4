"""Time and memory to load a folder of Hugging Face, beside transformers' own `from_pretrained`.

Command:  python benchmarks/loading.py                (needs the extra `peers`)
Minutes:  5 on two cores
Expected: for each size, medians of both and their ratios; below 1 is ours better

A folder of random weights is written once. Then processes take turns, after one each that is not counted: a process
imports what it needs, loads, and runs the model once on eight tokens. Reported are the seconds and the growth of peak
memory after the load and after that use, the seconds from the start of the process to its use, and the whole peak.
transformers maps the file and reads nothing before it is used, so the columns `used` compare more. Tensors that begin
at multiples of 64 bytes are used where they stand here, too; `--shift 8` moves them, so that they must be copied.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZES = {"124M": {}, "350M": {"n_embd": 1024, "n_layer": 24, "n_head": 16}}
COLUMNS = ("load s", "load MB", "used s", "used MB", "start s", "peak MB")
OURS = """
import numpy as np, kerastf, keras
from kerastf import convert
def load(folder): return kerastf.create_model("gpt", weights=folder)
def use(model): return float(keras.ops.max(model(np.ones((1, 8), "int32"))))
"""
THEIRS = """
import torch, transformers
from transformers import GPT2LMHeadModel
def load(folder): return GPT2LMHeadModel.from_pretrained(folder)
def use(model):
    with torch.no_grad():
        return float(model(torch.ones((1, 8), dtype=torch.long)).logits.max())
"""
MEASURE = """
import json, resource, sys, time
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
began = time.perf_counter()
model = load(sys.argv[1])
loaded = {"load s": time.perf_counter() - began, "load MB": peak() - before}
use(model)
used = {"used s": time.perf_counter() - began, "used MB": peak() - before}
print(json.dumps({**loaded, **used, "start s": time.time() - float(sys.argv[2]), "peak MB": peak()}))
"""
WRITE = """
import json, pathlib, sys, transformers
config = transformers.GPT2Config(**json.loads(sys.argv[2]))
transformers.GPT2LMHeadModel(config).save_pretrained(sys.argv[1])
path, shift = pathlib.Path(sys.argv[1]) / "model.safetensors", int(sys.argv[3])
content = path.read_bytes()
end = 8 + int.from_bytes(content[:8], "little")
header = content[8:end] + b" " * shift  # what follows it begins so many bytes later
path.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])
"""


def run(code, *arguments):
    # What is imported is compiled once and kept, as where a package is installed.
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def measure(code, folder):
    return json.loads(run(code + MEASURE, folder, str(time.time())).strip().splitlines()[-1])


def row(*cells):
    return f"{cells[0]:<6}{cells[1]:<14}" + "".join(f"{c:>10.2f}" for c in cells[2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each loads (5)")
    parser.add_argument("--shift", type=int, default=0, help="bytes to move the tensors by (0)")
    options = parser.parse_args()
    if options.shift < 0:
        parser.error(f"`--shift` must not be negative. Received: {options.shift}")
    print(f"{'size':<6}{'':<14}" + "".join(f"{c:>10}" for c in COLUMNS))
    for name, sizes in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            run(WRITE, folder, json.dumps(sizes), str(options.shift))
            megabytes = (Path(folder) / "model.safetensors").stat().st_size / 2**20
            found = {"kerastf": [], "transformers": []}
            for number in range(1 + options.rounds):
                turns = {"kerastf": measure(OURS, folder), "transformers": measure(THEIRS, folder)}
                for who, values in turns.items() if number else ():
                    found[who].append(values)
        medians = {who: [statistics.median(r[c] for r in rows) for c in COLUMNS] for who, rows in found.items()}
        for who, values in medians.items():
            print(row(name, who, *values))
        ratios = [a / b for a, b in zip(medians["kerastf"], medians["transformers"], strict=True)]
        print(row(name, "ratio", *ratios) + f"   (file: {megabytes:.0f} MB)", flush=True)


if __name__ == "__main__":
    main()
