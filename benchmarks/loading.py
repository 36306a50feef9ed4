"""Time and memory to load a folder of Hugging Face, beside transformers' own `from_pretrained`.

Command:  python benchmarks/loading.py                (needs the extra `peers`)
Minutes:  4 on two cores
Expected: for each size, medians of both and their ratios; below 1 is ours better

A folder of random weights is written once. Then processes take turns: each imports what it needs, notes its memory,
loads, and reports the seconds of the load and the peak of its memory, whole and beyond what the imports took.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = {"124M": {}, "350M": {"n_embd": 1024, "n_layer": 24, "n_head": 16}}
OURS = (
    "import kerastf, keras\nfrom kerastf import convert\ndef load(f): return kerastf.create_model('gpt', weights=f)\n"
)
THEIRS = "import torch, transformers\nfrom transformers import GPT2LMHeadModel\ndef load(f): return GPT2LMHeadModel.from_pretrained(f)\n"
MEASURE = """
import json, os, resource, sys, time
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
began = time.perf_counter()
model = load(sys.argv[1])
print(json.dumps({"seconds": time.perf_counter() - began, "peak": peak(), "grown": peak() - before}))
"""


def write(folder, sizes):
    code = (
        "import sys, json, transformers\n"
        "config = transformers.GPT2Config(**json.loads(sys.argv[2]))\n"
        "transformers.GPT2LMHeadModel(config).save_pretrained(sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", code, str(folder), json.dumps(sizes)], check=True, capture_output=True)


def measure(code, folder):
    done = subprocess.run(
        [sys.executable, "-c", code + MEASURE, str(folder)], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each loads (5)")
    options = parser.parse_args()
    print(f"{'size':<6}{'':<14}{'seconds':>9}{'peak MB':>10}{'grown MB':>10}")
    for name, sizes in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            write(folder, sizes)
            megabytes = (Path(folder) / "model.safetensors").stat().st_size / 2**20
            found = {"kerastf": [], "transformers": []}
            for _ in range(options.rounds):
                found["kerastf"].append(measure(OURS, folder))
                found["transformers"].append(measure(THEIRS, folder))
        medians = {who: {k: statistics.median(r[k] for r in rows) for k in rows[0]} for who, rows in found.items()}
        for who, row in medians.items():
            print(f"{name:<6}{who:<14}{row['seconds']:>9.2f}{row['peak']:>10.0f}{row['grown']:>10.0f}")
        ratios = {k: medians["kerastf"][k] / medians["transformers"][k] for k in medians["kerastf"]}
        print(f"{name:<6}{'ratio':<14}{ratios['seconds']:>9.2f}{ratios['peak']:>10.2f}{ratios['grown']:>10.2f}"
              f"   (file: {megabytes:.0f} MB)", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
