"""The parent's side: contestants as processes, and how much the host took away from us meanwhile."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers.cases import CONTESTANTS

QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
}


class Failure(Exception):
    """A contestant could not take part; the message says why."""


class Contestant:
    """One contestant's process.

    Args:
        name: Of the contestant.
        case: The case.
        timeout: Seconds to wait for an answer.

    Raises:
        Failure: It could not start, or did not answer.
    """

    def __init__(self, name, case, timeout):
        self.name, self.timeout = name, timeout
        settings = CONTESTANTS[name]
        folders = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(f for f in folders if f)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what pip installs has its bytecode; so has ours then
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        if "backend" in settings:
            environment["KERAS_BACKEND"] = settings["backend"]
        if not case["gpu"]:
            environment |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "peers.worker", json.dumps([case, settings])], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
        )  # fmt: skip

    def ask(self, command):
        """Sends a command and waits for its answer."""
        try:
            self.process.stdin.write(f"{command}\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise Failure(self._last_words()) from error
        return self.answer()

    def answer(self):
        """Waits for the next answer."""
        ready, _, _ = select.select([self.process.stdout], [], [], self.timeout)
        if not ready:
            raise Failure(f"no answer in {self.timeout:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise Failure(self._last_words())
        found = json.loads(line)
        if "error" in found:
            raise Failure(found["error"])
        return found

    def _last_words(self):
        code = self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        reason = "killed, perhaps for lack of memory" if code == -9 else f"ended with code {code}"
        return f"{reason}{': ' + lines[-1][:200] if lines and code != -9 else ''}"

    def close(self):
        """Ends the process and waits until its memory is free."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()


class Steal:
    """How large a share of the processors' time the host gave to others; `share` is known after the `with`."""

    def __enter__(self):
        self.before, self.share = self._read(), 0.0
        return self

    def __exit__(self, *_):
        total, stolen = (b - a for a, b in zip(self.before, self._read(), strict=True))
        self.share = stolen / total if total else 0.0

    @staticmethod
    def _read():
        try:
            times = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        except OSError:
            return 0, 0
        return sum(times), times[7]
