"""Several workers on this machine, started, watched and started again together.

A training with several workers ends when one of them dies, and waits for ever when one of them hangs. The supervisor
stops the rest and starts all of them again with the same command, which goes on from its last checkpoint.
"""

import argparse
import collections
import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from kerastf.errors import ConfigError

HEARTBEAT = "KERASTF_HEARTBEAT"  # the environment variable that names a worker's heartbeat file
LAST_LINES = 20  # of a worker that failed


def beat():
    """Tells the supervisor that this worker is alive. Without a supervisor it does nothing.

    `supervise(silence=...)` stops workers that have not called it for that long. Call it in every step; it costs a
    microsecond, and touches a file at most once in a second.

    Examples:
        >>> beat()
    """
    path = os.environ.get(HEARTBEAT)
    if path and time.monotonic() - _last.get(path, -1.0) > 1:
        _last[path] = time.monotonic()
        with contextlib.suppress(OSError):
            Path(path).touch()


_last: dict[str, float] = {}


def group():
    """What the workers of one supervisor have in common, those that it starts again too; None without one."""
    path = os.environ.get(HEARTBEAT)
    return Path(path).parent.name if path else None


def supervise(
    command, *, workers=2, restarts=3, window=3600.0, silence=None, grace=10.0, environment=None, folder=None,
    write=None,
):  # fmt: skip
    """Runs a command as several workers on this machine until all have ended well, and starts them again otherwise.

    Each worker has its own TF_CONFIG, with addresses on the loopback, so that `kerastf.training.strategy("auto")` joins
    them. The output of the first, the chief, is written as it comes, with a prefix; of the others, the last lines when
    one fails. Ctrl-C and SIGTERM are passed on. No worker outlives the supervisor.

    Args:
        command: The program and its arguments, a list of strings. Started again, it must go on from a checkpoint that
            all workers have.
        workers: How many.
        restarts: How often all are started again, at most, within a window. Any more failures end it; so does the
            exit status 2, by which a command refuses its arguments.
        window: Seconds in which restarts are counted.
        silence: Seconds without a `beat()` after which a worker counts as hung; None to wait for ever. Starting up must
            be faster, too.
        grace: Seconds that a worker has to end when it is told to, before it is killed.
        environment: Environment variables beside this process's own.
        folder: The working folder; by default this process's own.
        write: Called with each line of output; by default prints it.

    Returns:
        The exit status of the whole: 0 where all workers ended with 0, else that of the first that failed, or 128 and
        the signal's number where one ended it; 130 after Ctrl-C.

    Raises:
        ConfigError: The command is not a list of strings, or a number is out of range.

    Examples:
        >>> import sys
        >>> lines = []
        >>> supervise([sys.executable, "-c", "print('hello')"], workers=2, write=lines.append)
        0
        >>> lines
        ['[worker 0] hello']
    """
    _check(command, workers=workers, restarts=restarts)
    write = write or (lambda line: print(line, flush=True))
    failures = collections.deque()
    with tempfile.TemporaryDirectory(prefix="kerastf_workers_") as beats, _passing_signals() as caught:
        while True:
            group = _Group(command, workers, Path(beats), environment, folder, write)
            try:
                status, reason = group.watch(silence, caught)
            except KeyboardInterrupt:
                caught.append(signal.SIGINT)
            finally:
                group.stop(grace, caught[0] if caught else signal.SIGTERM)
            if caught:
                return 128 + caught[0]
            if status == 0:
                return 0
            group.tell(reason)
            if status == 2:
                write("[supervisor] that is a mistake in the command: it is not started again")
                return status
            now = time.monotonic()
            failures.append(now)
            while now - failures[0] > window:
                failures.popleft()
            if len(failures) > restarts:
                write(f"[supervisor] given up after {restarts} restarts within {window:g} seconds")
                return status
            write(f"[supervisor] all workers start again ({len(failures)} of {restarts})")


def _check(command, **least_one):
    if isinstance(command, str) or not command or not all(isinstance(c, str) for c in command):
        raise ConfigError(f"`command` is a list of strings, the program first. Received: command={command!r}")
    for name, value in least_one.items():
        least = 0 if name == "restarts" else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"`{name}` must be at least {least}. Received: {name}={value!r}")


@contextlib.contextmanager
def _passing_signals():
    """A list that SIGTERM is appended to, instead of ending this process at once. Ctrl-C raises, wherever it runs."""
    caught = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number)),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Group:
    """The workers of one attempt."""

    def __init__(self, command, workers, beats, environment, folder, write):
        self.write, self.started = write, time.time()
        self.lines = [collections.deque(maxlen=LAST_LINES) for _ in range(workers)]
        self.beats = [beats / f"worker_{i}" for i in range(workers)]
        self.processes, self.readers = [], []
        ports = _free_ports(workers)
        try:
            for i in range(workers):
                self.beats[i].unlink(missing_ok=True)
                cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
                own = {
                    "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}}),
                    HEARTBEAT: str(self.beats[i]),
                    "PYTHONUNBUFFERED": "1",
                }
                process = subprocess.Popen(
                    command, env={**os.environ, **(environment or {}), **own}, cwd=folder, text=True, errors="replace",
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    start_new_session=True, preexec_fn=_die_with_parent,
                )  # fmt: skip
                self.processes.append(process)
                self.readers.append(threading.Thread(target=self._read, args=(i,), daemon=True))
                self.readers[-1].start()
        except BaseException:
            self.stop(0, signal.SIGKILL)
            raise

    def _read(self, i):
        for line in self.processes[i].stdout:
            line = f"[worker {i}] {line.rstrip()}"
            self.lines[i].append(line)
            if i == 0:
                self.write(line)

    def watch(self, silence, caught):
        """Waits until all have ended well, one has not, or a signal came: the status and the reason."""
        while not caught:
            states = [p.poll() for p in self.processes]
            for i, state in enumerate(states):
                if state:
                    self.failed = i
                    how = f"was ended by {signal.Signals(-state).name}" if state < 0 else f"ended with status {state}"
                    return (128 - state if state < 0 else state), f"worker {i} {how}"
            if all(state == 0 for state in states):
                return 0, None
            for i, state in enumerate(states):
                if silence is not None and state is None and time.time() - self._last_beat(i) > silence:
                    self.failed = i
                    return 1, f"worker {i} gave no sign of life for {silence:g} seconds"
            time.sleep(0.05)
        return 1, None

    def _last_beat(self, i):
        with contextlib.suppress(FileNotFoundError):
            return self.beats[i].stat().st_mtime
        return self.started

    def stop(self, grace, number):
        """Ends every worker and what it started: first by the signal, then by force."""
        try:
            self._send(number)
            limit = time.monotonic() + grace
            while time.monotonic() < limit and any(p.poll() is None for p in self.processes):
                time.sleep(0.02)
        finally:  # Ctrl-C a second time comes through here
            self._send(signal.SIGKILL)
            for process in self.processes:
                process.wait()
        for process, reader in zip(self.processes, self.readers, strict=False):
            reader.join(timeout=5)
            process.stdout.close()

    def _send(self, number):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)  # its own group, which its children belong to

    def tell(self, reason):
        """The reason of a failure, and the last lines of the worker that failed."""
        if self.failed != 0:  # the chief's have been written already
            for line in self.lines[self.failed]:
                self.write(line)
        self.write(f"[supervisor] {reason}")


def _free_ports(count):
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent():
    """In the child, before its program starts: Linux ends it when the supervisor is gone, even by force."""
    if _libc is not None:
        _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main(arguments=None):
    """`python -m kerastf.supervisor --workers 2 -- python train.py`"""
    parser = argparse.ArgumentParser(prog="python -m kerastf.supervisor", description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="how many (default 2)")
    parser.add_argument("--restarts", type=int, default=3, help="how often all are started again (default 3)")
    parser.add_argument("--silence", type=float, help="seconds without a sign of life after which a worker is hung")
    parser.add_argument("command", nargs="+", help="the program and its arguments, after --")
    found = parser.parse_args(arguments)
    return supervise(found.command, workers=found.workers, restarts=found.restarts, silence=found.silence)


if __name__ == "__main__":
    sys.exit(main())
