"""One contestant's process: builds, warms up, then runs what it is told over its pipes, one line of JSON per answer."""

import importlib
import json
import os
import re
import sys
import time


def memory(field):
    """A field of this process's memory in MB: `VmRSS` now, `VmHWM` at its highest."""
    with open("/proc/self/status") as file:
        return int(re.search(rf"{field}:\s+(\d+)", file.read()).group(1)) / 1024


def forget_peak():
    """Lets the highest memory begin anew; returns what it was."""
    peak = memory("VmHWM")
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass  # not every system allows it: the growth is then an upper bound
    return peak


def device_peak():
    """The most GPU memory that was in use, in GB, or None."""
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
        return sys.modules["torch"].cuda.max_memory_allocated() / 2**30
    if "jax" in sys.modules:
        found = sys.modules["jax"].devices()[0].memory_stats() or {}
        return found["peak_bytes_in_use"] / 2**30 if "peak_bytes_in_use" in found else None
    return None


def serve(case, settings, say):
    """Builds the program of a case and answers until there are no more commands."""
    began = time.perf_counter()
    module = importlib.import_module(f"peers.{settings['program']}")
    imported = time.perf_counter()
    program = module.create(case, settings)
    built = time.perf_counter()
    if case["kind"] == "startup":
        program.run(1)
        say(**{"import s": imported - began, "build s": built - imported, "first step s": time.perf_counter() - built})
        return
    if case["kind"] == "memory":
        program.build_optimizer()
        before, earlier = memory("VmRSS"), forget_peak()
        program.run(case["steps"])
        peak = memory("VmHWM")
        say(**{"peak MB": max(peak, earlier), "growth MB": peak - before})
        return
    program.run(1)
    program.run(case["steps"])
    say(ready=True)
    for line in sys.stdin:
        if line.strip() == "memory":
            say(peak=device_peak())
            continue
        began = time.perf_counter()
        program.run(int(line))
        say(s=(time.perf_counter() - began) / int(line))


def main():
    """Reads the case and the contestant's settings from the command line."""
    case, settings = json.loads(sys.argv[1])
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers

    def say(**message):
        print(json.dumps(message), file=channel, flush=True)

    try:
        serve(case, settings, say)
    except Exception as error:
        say(error=f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}")
        raise


if __name__ == "__main__":
    main()
