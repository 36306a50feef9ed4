"""Old names, old options and old files keep working: aliases, renamed options, upgrades, golden files."""

import warnings
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

import kerastf
from kerastf import evolution, plugins, registry
from kerastf.errors import ConfigError
from kerastf.testing.subjects import joined

SMALL = {"vocab_size": 13, "max_length": 12, "dim": 8, "num_layers": 2, "num_heads": 2}
GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("family", [e.id for e in registry.entries("model") if not e.namespace])
def test_a_file_of_the_first_version_loads(family):
    """Every family has one. `tests/golden/make.py` writes it, once."""
    with np.load(GOLDEN / f"{family}.npz") as data:
        inputs = {k: data[k] for k in data.files if k != "output"}
        want = data["output"]
    model = kerastf.load_model(GOLDEN / f"{family}.keras")
    given = inputs if len(inputs) > 1 else next(iter(inputs.values()))
    np.testing.assert_allclose(joined(model(given)), want, atol=1e-5)
    assert model.optimizer.iterations.numpy() in (0, 1) and "provenance" in model.get_config()
    with zipfile.ZipFile(GOLDEN / f"{family}.keras") as archive:
        assert b"config_version" not in archive.read("config.json")


@pytest.fixture
def manifest(monkeypatch):
    """Adds to what the manifest says of a built-in, and forgets which warnings were shown."""
    ours = plugins.discover()["kerastf"]

    def add(kind, name, **facts):
        monkeypatch.setitem(ours.manifest[kind], name, {**ours.manifest[kind][name], **facts})

    monkeypatch.setattr(evolution, "_told", set())
    return add


def test_an_alias_is_told_once_and_saved_under_the_new_name(manifest):
    manifest("norm", "rms", aliases=["root_mean_square"])
    with pytest.warns(FutureWarning, match="The norm `root_mean_square` is called `rms` now."):
        model = kerastf.create_model("gpt", **SMALL, norm="root_mean_square")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kerastf.create_block("norm", "root_mean_square")  # told already
    assert model.options["norm"] == "rms"
    assert "root_mean_square" not in kerastf.list_blocks()


def test_an_alias_never_takes_a_name_that_somebody_has(manifest):
    manifest("norm", "rms", aliases=["layer"])
    assert registry.find("norm", "layer").name == "layer"
    with pytest.raises(LookupError):  # and a bare one never reaches into a plugin's namespace
        registry.find("norm", "template/root")


def test_a_file_with_an_earlier_name_loads(manifest, tmp_path):
    model = kerastf.create_model("gpt", **SMALL, norm="rms")
    path = tmp_path / "model.keras"
    model.save(path)
    rewrite(path, '"norm": "rms"', '"norm": "root_mean_square"')
    manifest("norm", "rms", aliases=["root_mean_square"])
    with pytest.warns(FutureWarning):
        again = kerastf.load_model(path)
    tokens = np.arange(6)[None]
    np.testing.assert_array_equal(again(tokens), model(tokens))


def test_a_family_under_an_earlier_name_loads(manifest, tmp_path):
    model = kerastf.create_model("gpt", **SMALL)
    path = tmp_path / "model.keras"
    model.save(path)
    rewrite(path, "model.gpt", "model.causal_transformer")
    manifest("model", "gpt", aliases=["causal_transformer"])
    kerastf.keras_hook.register_all(keras.saving)
    with pytest.warns(FutureWarning, match="`causal_transformer` is called `gpt` now"):
        again = kerastf.load_model(path)
    assert type(again) is type(model)


def test_renamed_options_of_blocks_and_models(manifest):
    manifest("norm", "rms", renamed={"eps": "epsilon"})
    manifest("model", "gpt", renamed={"layers": "num_layers"})
    with pytest.warns(FutureWarning, match="The option `eps` of norm `rms` is called `epsilon` now."):
        block = kerastf.create_block("norm", "rms", eps=0.5)
    assert block.epsilon == 0.5
    with pytest.warns(FutureWarning, match="`layers` of model `gpt` is called `num_layers` now"):
        model = kerastf.create_model("gpt.nano", vocab_size=13, layers=1, norm={"name": "rms", "eps": 0.25})
    assert model.options["num_layers"] == 1 and model.options["norm"] == {"name": "rms", "epsilon": 0.25}
    with pytest.raises(ConfigError, match="`eps` is the old name of `epsilon`. Give one of them"):
        kerastf.create_block("norm", "rms", eps=0.5, epsilon=0.1)


def test_what_is_deprecated_is_told_once(manifest):
    manifest("norm", "none", deprecated="Use `rms`. It goes with version 2.")
    with pytest.warns(FutureWarning, match="norm `none` is deprecated. Use `rms`. It goes with version 2."):
        kerastf.create_block("norm", "none")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kerastf.create_block("norm", "none")


class Grown(keras.layers.Layer):
    """A norm whose configuration changed twice: `times` became `factor`, then `factor` its logarithm.

    Args:
        log_factor: Logarithm of what the input is multiplied with.
        **kwargs: Passed to `keras.layers.Layer`.
    """

    config_version = 3

    def __init__(self, *, log_factor: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.log_factor = log_factor

    @classmethod
    def upgrade(cls, config, from_version):
        config = dict(config)
        if from_version == 1 and "times" in config:
            config["factor"] = config.pop("times")
        if from_version == 2 and "factor" in config:
            config["log_factor"] = float(np.log(config.pop("factor")))
        return config

    def call(self, x):
        return x * np.exp(self.log_factor).astype("float32")

    def compute_mask(self, x, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {**super().get_config(), "log_factor": self.log_factor}


@pytest.fixture
def grown():
    return kerastf.register("norm", "grown", supports=("causal",))(Grown)


@pytest.mark.parametrize(
    "version, saved", [(1, {"times": 2.0}), (2, {"factor": 2.0}), (3, {"log_factor": 0.6931471806})]
)
def test_blocks_of_every_earlier_version_load_in_models(grown, version, saved, tmp_path):
    model = kerastf.create_model("gpt", **SMALL, norm={"name": "grown", "log_factor": float(np.log(2.0))})
    path = tmp_path / "model.keras"
    model.save(path)
    assert model.get_config()["provenance"]["local/grown"]["config_version"] == 3
    import json

    def older(config):
        config["config"]["norm"] = {"name": "local/grown", **saved}
        claim = config["config"]["provenance"]["local/grown"]
        claim["config_version"] = version
        if version == 1:
            del claim["config_version"]  # the first version says nothing
        return config

    change_config(path, lambda text: json.dumps(older(json.loads(text))))
    again = kerastf.load_model(path)
    np.testing.assert_allclose(again(np.arange(6)[None]), model(np.arange(6)[None]), atol=1e-5)


def test_blocks_of_earlier_versions_load_in_plain_keras_models(grown, tmp_path):
    inputs = keras.Input((3, 4))
    model = keras.Model(inputs, Grown(log_factor=1.0)(inputs))
    path = tmp_path / "plain.keras"
    model.save(path)
    rewrite(path, '"log_factor": 1.0, "config_version": 3', '"factor": 5.0, "config_version": 2')
    again = keras.saving.load_model(path)
    np.testing.assert_allclose(again(np.ones((1, 3, 4))), 5 * np.ones((1, 3, 4)), atol=1e-5)


@pytest.mark.parametrize("own", [False, True], ids=["inherited", "calls super"])
def test_a_class_below_a_versioned_one_upgrades_once(own):
    class Base(keras.layers.Layer):
        config_version = 2

        def __init__(self, *, size=1, **kwargs):
            super().__init__(**kwargs)
            self.size = size

        @classmethod
        def upgrade(cls, config, from_version):
            return {**config, "size": 10 * config["size"]}

        def get_config(self):
            return {**super().get_config(), "size": self.size}

    class Above(Base):
        @classmethod
        def from_config(cls, config):
            assert "config_version" not in config
            return super().from_config(config)

    class Plain(Base):
        pass

    kerastf.register("norm", f"base_{own}".lower())(Base)
    cls = kerastf.register("norm", f"above_{own}".lower())(Above if own else Plain)
    config = cls(size=3).get_config()
    assert config["config_version"] == 2
    assert cls.from_config(config).size == 3
    assert cls.from_config({"size": 3}).size == 30  # of the first version
    assert Base.from_config(Base(size=3).get_config()).size == 3

    class Unregistered(cls):
        pass

    assert Unregistered.from_config(Unregistered(size=3).get_config()).size == 3


def test_a_file_of_a_later_version_is_refused(grown, tmp_path):
    model = kerastf.create_model("gpt", **SMALL, norm="grown")
    path = tmp_path / "model.keras"
    model.save(path)
    rewrite(path, '"config_version": 3', '"config_version": 4')
    with pytest.raises(ConfigError, match="was saved with version 4 of its configuration, and the class here knows"):
        kerastf.load_model(path)


def change_config(path, change):
    """Rewrites config.json inside a saved model."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["config.json"] = change(members["config.json"].decode()).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def rewrite(path, old, new):
    def change(text):
        assert old in text, text
        return text.replace(old, new)

    change_config(path, change)
