"""The command line, as a user types it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import leaky
import pytest

import kerastf
from kerastf import testing
from kerastf.cli import main
from kerastf.text import CharacterTokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "small.keras"
    model = kerastf.create_model(
        "gpt",
        tokenizer=CharacterTokenizer("abc "),
        max_length=16,
        dim=8,
        num_layers=1,
        num_heads=2,
        norm="template/unit",
    )
    model.save(path)
    return path


def run(capsys, *arguments):
    status = main(list(arguments))
    out = capsys.readouterr()
    return status, out.out, out.err


def test_list(capsys):
    status, out, _ = run(capsys, "list")
    assert status == 0 and "gpt.nano" in out and "linear_attention/linear" in out
    status, out, _ = run(capsys, "list", "*head*", "--kind", "attention")
    assert out.splitlines()[0] == "attention" and "multi_head" in out and len(out.splitlines()) == 2
    status, out, err = run(capsys, "list", "zzz")
    assert status == 2 and err == "Nothing matches 'zzz'. Without a pattern, everything is listed.\n"
    status, out, err = run(capsys, "list", "attention")
    assert status == 2 and err == "Nothing matches 'attention'. Did you mean: kerastf list --kind attention\n"


def test_a_reader_that_has_had_enough_is_no_error():
    with subprocess.Popen(
        [sys.executable, "-m", "kerastf", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait() == 0


def test_info(capsys):
    status, out, _ = run(capsys, "info", "multi_head")
    assert status == 0
    for text in ("num_kv_heads", "kerastf.blocks.attention:MultiHead", "https://arxiv.org/abs/1706.03762", "causal"):
        assert text in out


def test_info_says_what_a_preset_costs(capsys):
    status, out, _ = run(capsys, "info", "vit.b16")
    assert status == 0 and "86,567,656 parameters  33 GFLOPs for 224 x 224 pixels  image_size=224" in out
    status, out, _ = run(capsys, "info", "gpt.nano")
    assert "FLOPs" not in out and "(the others take a vocab_size of your own)" in out


def test_info_of_layers(capsys):
    status, out, _ = run(capsys, "info", "gpt.nano", "--layers", "3", "--vocab-size", "65", "--length", "64")
    lines = out.splitlines()
    assert status == 0 and lines[0] == "gpt.nano on tokens 1 x 64" and "layer_0/attention/qkv" in out
    assert lines[-1].split() == ["total", "137,184", "14.1", "M", "628", "KiB"]
    status, out, _ = run(capsys, "info", "gpt.nano", "--layers", "--vocab-size", "65", "--length", "64")
    assert [line.split()[0] for line in out.splitlines()[3:-1]] == [
        "embedding", "position", "layer_0", "layer_1", "layer_2", "norm", "head",
    ]  # fmt: skip
    for arguments, message in [
        (["rms", "--layers"], "kerastf: --layers is for models. Received: rms\n"),
        (["gpt.nano", "--layers", "0"], "kerastf: --layers takes a depth of at least 1. Received: 0\n"),
    ]:
        status, _, err = run(capsys, "info", *arguments)
        assert status == 2 and err == message


def test_plugins(capsys, install):
    install("kerastf-bad", {"norm": {"half": "Half"}}, code="raise RuntimeError('on purpose')", requires=["kerastf>=9"])
    status, out, _ = run(capsys, "plugins")
    assert status == 0 and "kerastf-linear-attention 0.1.0" in out and "bad                  incompatible" in out
    assert "  problem: it needs kerastf>=9, and kerastf " in out


def test_plugin_new(capsys, tmp_path):
    status, out, _ = run(capsys, "plugin", "new", "mine", "--kind", "norm", "--out", str(tmp_path))
    assert status == 0 and out.splitlines()[0] == f"{tmp_path / 'kerastf-mine'} is a package of one norm. Next:"
    status, _, err = run(capsys, "plugin", "new", "mine", "--kind", "norm", "--out", str(tmp_path))
    assert status == 2 and err.endswith("kerastf-mine exists already. Choose another name, or remove it first.\n")
    status, _, err = run(capsys, "plugin", "check", str(tmp_path))
    assert status == 2 and "it has no pyproject.toml. Begin one: kerastf plugin new NAME --kind KIND" in err


def test_inspect(capsys, saved):
    status, out, _ = run(capsys, "inspect", str(saved), "--weights")
    assert status == 0 and "template/unit: kerastf-template 0.1.0" in out and "(4, 8)" in out


def test_generate(capsys, saved):
    status, out, _ = run(capsys, "generate", str(saved), "--prompt", "ab", "--max-length", "8")
    assert status == 0 and out.startswith("ab") and len(out.rstrip("\n")) == 8
    draws = [
        run(capsys, "generate", str(saved), "--prompt", "ab", "--sampler", "random", "--temperature", "2", "--seed", s)[
            1
        ]
        for s in ("1", "1", "2")
    ]
    assert draws[0] == draws[1] != draws[2]
    status, out, _ = run(capsys, "generate", str(saved), "--prompt", "ab", "--beams", "2")
    assert out.startswith("ab")
    status, _, err = run(capsys, "generate", str(saved), "--prompt", "abx")
    assert status == 2 and "has no character 'x'" in err
    status, _, err = run(capsys, "generate", str(saved), "--prompt", "ab", "--plugins", "none")
    assert status == 2 and "not allowed here" in err
    for option, value, says in [
        ("temperature", "nan", "`temperature` must be a positive number. Received: temperature=nan"),
        ("seed", f"{2**32}", "`seed` must be at least 0 and below 2**32. Received: seed=4294967296"),
    ]:
        arguments = ["--prompt", "ab", "--sampler", "random", f"--{option}", value]
        status, _, err = run(capsys, "generate", str(saved), *arguments)
        assert status == 2 and err == f"kerastf: {says}\n"


def test_check(capsys):
    status, out, _ = run(capsys, "check", "rms")
    assert status == 0 and out.startswith("norm `rms`: ") and "0 failed" in out


def test_check_of_a_preset_that_leaves_its_vocabulary_open():
    chosen = ["config", "steps"]
    assert testing.check_model("gpt.nano", only=chosen).ok
    assert testing.check_model("seq2seq.plain", only=["config"]).ok


def test_check_of_a_preset_that_is_none(capsys):
    status, _, err = run(capsys, "check", "gpt.nan")
    assert status == 2 and err.startswith("kerastf: `gpt` has no preset `nan`. Did you mean `gpt.nano`")


MISTAKES = [
    (["matrix", "--model", "gtp"], "kerastf: There is no model `gtp`. Did you mean `gpt`? "),
    (["matrix", "--block", "rsm"], "kerastf: There is no block or model `rsm`. Did you mean `rms`? "),
    (["matrix", "--block", "greedy"], "No model has a slot for such a block."),
    (["predict", "nowhere", "text", "-k", "-5"], "kerastf: `k` must be at least 1. Received: k=-5"),
    (["predict", "nowhere", "text", "-k", "0"], "kerastf: `k` must be at least 1. Received: k=0"),
]


@pytest.mark.parametrize(("arguments", "says"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes(capsys, arguments, says):
    status, _, err = run(capsys, *arguments)
    assert status == 2 and err.startswith(says)


@pytest.mark.parametrize(
    "arguments",
    [["train", "gpt.nano", "--worker", "2"], ["plugin", "check", "--ful"], ["list", "--kin", "norm"], ["--versio"]],
)
def test_options_are_written_in_full(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_what_keras_writes_around_an_error_is_left_out(capsys, saved, monkeypatch):
    def fail(*args, **kwargs):
        raise ValueError(
            "Exception encountered when calling Layer.call().\n\n\x1b[1mToo long.\x1b[0m\n\nArguments:\n  • x"
        )

    monkeypatch.setattr("kerastf.checkpoint.load_model", fail)
    assert run(capsys, "generate", str(saved), "--prompt", "a")[2] == "kerastf: Too long.\n"


def test_a_terminal_that_cannot_show_a_sign():
    code = "from kerastf import cli; cli._list = lambda options: print('1 ± 2'); cli.main(['list'])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=True
    )
    assert done.stdout == b"1 ? 2\n"


def test_nothing_but_the_answer_is_written(saved):
    """TensorFlow's notices are left out; what it says of errors is not, even if the process dies of them."""
    done = subprocess.run(
        [sys.executable, "-m", "kerastf", "generate", str(saved), "--prompt", "abx"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.startswith("kerastf: ") and len(done.stderr.splitlines()) == 1
    code = (
        "import os\nfrom kerastf.cli_plugin import without_notices\nwith without_notices():\n"
        "    os.write(2, b'I0000 00:00:1.5    7 a.cc:1] well\\nE0000 00:00:1.5    7 a.cc:1] ill\\nI am not one')\n"
        "    os.abort()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "E0000 00:00:1.5    7 a.cc:1] ill\nI am not one"


def test_check_shows_what_is_wrong(capsys, install):
    code = Path(leaky.__file__).read_text("utf-8")
    code += 'import kerastf\nkerastf.register("norm", "mean", supports=("causal",))(Peeks)\n'
    install("kerastf-leaky", {"norm": {"mean": "Peeks"}}, code=code)
    status, out, _ = run(capsys, "check", "leaky/mean")
    assert status == 1
    assert "FAIL  causal" in out and "it sees the future" in out
    assert out.count("FAIL") == 2  # it sees the future, and cannot decode


@pytest.mark.parametrize("arguments", [["--help"], *([c, "--help"] for c in ("list", "info", "plugins", "inspect", "check", "matrix", "generate", "demo", "plugin", "stubs"))])  # fmt: skip
def test_help_explains(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) > 5


def best_seconds(*command):
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    return min(times)


def test_listing_starts_no_framework_and_is_quick():
    # A bound with room for a busy machine; benchmarks/startup.py measures.
    assert best_seconds(sys.executable, "-m", "kerastf", "list") < 1.5


def test_demo_in_short(capsys, tmp_path):
    status, out, _ = run(capsys, "demo", "--out", str(tmp_path), "--steps", "6")
    assert status == 0
    assert {p.name for p in tmp_path.iterdir()} == {"gpt.nano.keras", "attention.png"}
    for text in ("Before training", "Validation loss", "After training", "three most likely", "A new process loads it"):
        assert text in out
