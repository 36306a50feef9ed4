"""The supervisor: workers that die, hang or are interrupted, and what cannot be supervised."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kerastf.errors import ConfigError
from kerastf.supervisor import supervise


def script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(
        "import json, os, signal, sys, time\nme = json.loads(os.environ['TF_CONFIG'])['task']['index']\n" + text
    )
    return [sys.executable, str(path)]


def test_a_worker_that_dies_ends_the_others_and_all_start_again(tmp_path):
    lines, ids = [], tmp_path / "ids"
    ids.mkdir()
    text = f"""
open({str(ids)!r} + f"/{{os.getpid()}}", "w")
print("attempt", flush=True)
if me == 1:
    print("of the other", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(100)
"""
    start = time.monotonic()
    assert supervise(script(tmp_path, text), workers=2, restarts=2, grace=5, write=lines.append) == 128 + 9
    assert time.monotonic() - start < 20
    found = [line for line in lines if "attempt" not in line]
    assert found == [
        "[worker 1] of the other", "[supervisor] worker 1 was ended by SIGKILL",
        "[supervisor] all workers start again (1 of 2)",
        "[worker 1] of the other", "[supervisor] worker 1 was ended by SIGKILL",
        "[supervisor] all workers start again (2 of 2)",
        "[worker 1] of the other", "[supervisor] worker 1 was ended by SIGKILL",
        "[supervisor] given up after 2 restarts within 3600 seconds",
    ]  # fmt: skip
    assert not [p.name for p in ids.iterdir() if Path("/proc", p.name).exists()]  # nobody is left


def test_a_worker_that_hangs_is_noticed(tmp_path):
    lines = []
    text = """
from kerastf.supervisor import HEARTBEAT
from pathlib import Path
for _ in range(100 if me == 0 else 3):
    Path(os.environ[HEARTBEAT]).touch()
    time.sleep(0.1)
time.sleep(100 if me else 0)
""".replace("from kerastf.supervisor import HEARTBEAT", "HEARTBEAT = 'KERASTF_HEARTBEAT'")
    assert supervise(script(tmp_path, text), restarts=0, silence=2.0, grace=1, write=lines.append) == 1
    assert lines[0] == "[supervisor] worker 1 gave no sign of life for 2 seconds"


def test_ctrl_c_is_passed_on(tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    text = f"""
try:
    open({str(marks)!r} + f"/ready{{me}}", "w")
    time.sleep(100)
except KeyboardInterrupt:
    open({str(marks)!r} + f"/interrupted{{me}}", "w")
    sys.exit(3)
"""
    whole = [sys.executable, "-m", "kerastf.supervisor", "--workers", "2", "--", *script(tmp_path, text)]
    process = subprocess.Popen(whole)
    try:
        limit = time.monotonic() + 240
        while len(list(marks.glob("ready*"))) < 2 and time.monotonic() < limit:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
        process.wait()
    assert {p.name for p in marks.iterdir()} == {"ready0", "ready1", "interrupted0", "interrupted1"}


def test_what_cannot_be_supervised():
    for given, message in (
        (
            {"command": "python train.py"},
            "`command` is a list of strings, the program first. Received: command='python train.py'",
        ),
        ({"command": ["x"], "workers": 0}, "`workers` must be at least 1. Received: workers=0"),
        ({"command": ["x"], "restarts": -1}, "`restarts` must be at least 0. Received: restarts=-1"),
    ):
        with pytest.raises(ConfigError) as e:
            supervise(**given)
        assert str(e.value) == message
