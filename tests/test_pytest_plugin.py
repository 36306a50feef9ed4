"""`pytest --kerastf-plugin NAMESPACE`: contracts as tests, and no cost where nobody asks for them."""

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

GOOD = '''
import keras
from kerastf import register

@register("norm", "half", supports=("causal",))
class Half(keras.layers.Layer):
    """Half.

    Args:
        **kwargs: Passed on.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, x):
        return x / 2

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return x_shape
'''
LEAKY = GOOD.replace("half", "leaky").replace("Half", "Leaky").replace("x / 2", "x - keras.ops.mean(x, axis=1, keepdims=True)")  # fmt: skip


def test_each_name_is_a_test_and_a_failure_is_its_report(install, pytester):
    install("kerastf-pair", {"norm": {"half": "Half", "leaky": "Leaky"}}, code=GOOD + LEAKY)
    pytester.makepyfile("def test_own():\n    pass\n")
    done = pytester.runpytest_subprocess(
        "--kerastf-plugin", "pair", "--kerastf-level", "quick", "-v", "-p", "no:cacheprovider"
    )
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines([
        "*kerastf::contract[[]norm:pair/half] PASSED*",
        "*kerastf::contract[[]norm:pair/leaky] FAILED*",
        "norm `pair/leaky`: *",
        "  FAIL  causal *it sees the future",
    ])  # fmt: skip
    assert "Traceback" not in done.stdout.str()


@pytest.mark.slow
def test_ini_option_with_k_and_xdist(install, pytester):
    install("kerastf-pair", {"norm": {"half": "Half", "leaky": "Leaky"}}, code=GOOD + LEAKY)
    pytester.makeini("[pytest]\nkerastf_plugin = pair\n")
    pytester.makepyfile("def test_own():\n    pass\n")
    done = pytester.runpytest_subprocess("--kerastf-level", "quick", "-k", "half", "-n", "1")
    done.assert_outcomes(passed=1)


def test_an_unknown_namespace(pytester):
    done = pytester.runpytest_subprocess("--kerastf-plugin", "nobody")
    assert done.ret == 4
    done.stderr.fnmatch_lines(["ERROR: No plugin has the namespace `nobody`. Installed: *template*"])


def test_it_costs_nothing_where_nobody_asks(tmp_path):
    (tmp_path / "test_own.py").write_text(
        "import sys\n\ndef test_own():\n"
        "    assert 'pytest_kerastf' in sys.modules\n"
        "    assert not {m.partition('.')[0] for m in sys.modules} & {'kerastf', 'keras', 'tensorflow', 'numpy'}\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
