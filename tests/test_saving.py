"""Saving and loading: fresh processes, both import orders, missing plugins, strangers' files."""

import json
import subprocess
import sys
import time
import zipfile

import keras
import numpy as np
import pytest

import kerastf
from kerastf.errors import ConfigError, FileFormatError, PluginError, UnknownNameError
from kerastf.text import CharacterTokenizer

TINY = {"vocab_size": 11, "max_length": 16, "dim": 12, "num_layers": 2, "num_heads": 3}


def fresh(code, **environment):
    import os

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model with a plugin's attention and norm, trained for a moment, saved."""
    keras.utils.set_random_seed(1)
    model = kerastf.create_model("gpt", **TINY, attention="linear_attention/linear", norm="template/unit")
    model.compile(keras.optimizers.AdamW(1e-2, weight_decay=0.1))
    x = np.random.default_rng(0).integers(0, 11, (16, 9))
    model.fit(x[:, :-1], x[:, 1:], epochs=2, verbose=0)
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    model.save(path)
    return model, x, path


ORDERS = {
    "kerastf first": "import kerastf, keras",
    "keras first": "import keras, kerastf",
    "somebody asks for the spec": "import kerastf, importlib.util; importlib.util.find_spec('keras'); import keras",
}


@pytest.mark.parametrize("order", ORDERS)
def test_plain_keras_loads_it_in_a_fresh_process(trained, order):
    model, x, path = trained
    code = f"""
{ORDERS[order]}
import numpy as np
model = keras.saving.load_model({str(path)!r})
print(float(np.sum(np.abs(keras.ops.convert_to_numpy(model(np.arange(8)[None]))))), model.optimizer.iterations.numpy())
x = np.random.default_rng(0).integers(0, 11, (16, 9))
print(model.fit(x[:, :-1], x[:, 1:], verbose=0).history["loss"][0])
"""
    out = fresh(code).split()
    total = float(np.sum(np.abs(keras.ops.convert_to_numpy(model(np.arange(8)[None])))))
    assert float(out[0]) == pytest.approx(total, rel=1e-5)
    assert int(out[1]) == 2  # the optimizer goes on where it was
    assert float(out[2]) < 2.4


def test_load_model_equals_and_goes_on_alike(trained):
    model, x, path = trained
    loaded = kerastf.load_model(path)
    assert loaded.get_config() == model.get_config()
    a, b = (m.evaluate(x[:, :-1], x[:, 1:], verbose=0) for m in (model, loaded))
    assert a == b
    excluded = [v.path for v in loaded.trainable_variables if not loaded.optimizer._use_weight_decay(v)]
    assert excluded == [v.path for v in loaded.trainable_variables if len(v.shape) < 2]


def test_provenance_is_in_the_file(trained):
    saved = kerastf.inspect(trained[2])
    assert saved.model == "gpt"
    assert saved.provenance["linear_attention/linear"] == {
        "distribution": "kerastf-linear-attention",
        "version": "0.1.0",
    }
    assert saved.provenance["gpt"]["distribution"] == "kerastf"
    assert saved.parameters == trained[0].count_params()


def test_inspect_needs_neither_tensorflow_nor_the_plugin(trained):
    code = f"""
import sys, kerastf.cli
kerastf.cli.main(["inspect", {str(trained[2])!r}])
print([m for m in sys.modules if m.split(".")[0] in ("tensorflow", "keras", "kerastf_linear_attention")])
"""
    out = fresh(code)
    assert "linear_attention/linear: kerastf-linear-attention 0.1.0" in out
    assert out.splitlines()[-1] == "[]"


def test_a_missing_plugin_is_one_clear_error(trained, install, tmp_path):
    install(
        "kerastf-gone", {"norm": {"gone": "Gone"}},
        code="""
        from kerastf import register
        from kerastf_template import Unit

        @register("norm", "gone", supports=("causal",))
        class Gone(Unit):
            pass
        """,
    )  # fmt: skip
    path = tmp_path / "gone.keras"
    kerastf.create_model("gpt", **TINY, norm="gone/gone").save(path)
    code = f"""
import kerastf, keras
for load in (keras.saving.load_model, kerastf.load_model):
    try:
        load({str(path)!r})
    except ImportError as error:
        print(type(error).__name__, error)
"""
    want = (
        "PluginError The file needs the norm block `gone/gone`, and no installed package offers it. The file says it "
        "comes from kerastf-gone 1.0. If you trust that package: pip install kerastf-gone==1.0"
    )
    assert fresh(code, PYTHONPATH="").splitlines() == [want, want]


def test_plugins_none_for_strangers_files(trained):
    path = str(trained[2])
    code = f"""
import sys, kerastf
try:
    kerastf.load_model({path!r}, plugins="none")
except ImportError as error:
    print(error)
print("kerastf_linear_attention" in sys.modules)
kerastf.load_model({path!r}, plugins=["linear_attention", "template"])
"""
    out = fresh(code).splitlines()
    assert out[0].startswith("`linear_attention/linear` (attention) comes from the plugin") or "2 problems" in out[0]
    assert out[-1] == "False"


def test_tokenizer_and_dtype_travel(tmp_path):
    tokenizer = CharacterTokenizer("abc ", special_tokens=("end",))
    model = kerastf.create_model(
        "gpt", tokenizer=tokenizer, max_length=8, dim=8, num_layers=1, num_heads=2, dtype="bfloat16"
    )
    model.save(tmp_path / "m.keras")
    loaded = kerastf.load_model(tmp_path / "m.keras")
    assert loaded.tokenizer.encode("a cab") == tokenizer.encode("a cab")
    assert loaded.dtype_policy.name == "bfloat16"
    assert loaded.generate("a", max_length=5) == model.generate("a", max_length=5)


def test_a_model_that_was_compiled_but_not_trained_loads(tmp_path):
    model = kerastf.create_model("gpt", **TINY)
    model.compile("adamw")
    model.save(tmp_path / "m.keras")
    loaded = kerastf.load_model(tmp_path / "m.keras")
    x = np.random.default_rng(0).integers(0, 11, (4, 9))
    loaded.fit(x[:, :-1], x[:, 1:], verbose=0)


def test_a_mistake_at_fit_does_not_spoil_the_model():
    import tensorflow as tf

    model = kerastf.create_model("gpt", **TINY)
    model.compile("adamw")
    good = np.random.default_rng(0).integers(0, 11, (4, 9))
    bad = tf.data.Dataset.from_tensors((np.zeros((4, 40), "int32"), np.zeros((4, 40), "int32")))
    with pytest.raises(ValueError, match="learns 16"):
        model.fit(bad, verbose=0, shuffle=False)
    model.fit(good[:, :-1], good[:, 1:], verbose=0)


def test_saving_is_atomic(tmp_path, monkeypatch):
    model = kerastf.create_model("gpt", **TINY)
    path = tmp_path / "m.keras"
    model.save(path)
    before = path.read_bytes()

    def half(self, filepath, **kwargs):
        filepath.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(keras.Model, "save", half)
    with pytest.raises(OSError, match="no space left"):
        model.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.keras"]


def test_a_file_has_the_rights_that_the_process_gives(tmp_path, monkeypatch):
    """The mask is the whole process's: setting it would change the files of other threads."""
    import os

    from kerastf import checkpoint

    before = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", None)
        with checkpoint.atomic(tmp_path / "file") as temporary:
            temporary.write_text("x")
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_local_blocks_survive_in_the_same_session(tmp_path):
    @kerastf.register("norm", "mine", supports=("causal",))
    class Mine(keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)

        def call(self, x):
            return x / 2

        def compute_output_shape(self, x_shape):
            return x_shape

    model = kerastf.create_model("gpt", **TINY, norm=Mine)
    assert model.options["norm"] == "local/mine"
    model.save(tmp_path / "m.keras")
    kerastf.load_model(tmp_path / "m.keras")


def rewrite(path, out, change):
    """Copies an archive, letting `change` alter the members."""
    with zipfile.ZipFile(path) as source:
        members = {i.filename: source.read(i) for i in source.infolist()}
    change(members)
    with zipfile.ZipFile(out, "w") as target:
        for name, content in members.items():
            target.writestr(name, content)
    return out


def test_strangers_files(trained, tmp_path):
    def lie(members):
        config = json.loads(members["config.json"])
        config["config"]["attention"] = "os/system"
        config["config"]["provenance"] = {}
        members["config.json"] = json.dumps(config)

    with pytest.raises(LookupError, match="no installed plugin has the namespace `os`"):
        kerastf.load_model(rewrite(trained[2], tmp_path / "a.keras", lie))

    def escape(members):
        members["../evil.txt"] = b"x"

    with pytest.raises(FileFormatError, match="would leave its folder"):
        kerastf.load_model(rewrite(trained[2], tmp_path / "b.keras", escape))

    def surplus(members):
        members["payload.pkl"] = b"x"

    with pytest.raises(FileFormatError, match="unexpected member"):
        kerastf.load_model(rewrite(trained[2], tmp_path / "c.keras", surplus))

    bomb = tmp_path / "d.keras"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("metadata.json", b" " * (65 * 2**20))
        target.writestr("config.json", "{}")
        target.writestr("model.weights.h5", "")
    with pytest.raises(FileFormatError, match="beyond what a file"):
        kerastf.load_model(bomb)


def symbolic(name):
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o120777 << 16
    return info


@pytest.mark.parametrize(
    "surplus, told",
    [
        ([(f"assets/{i}", bytes(2**23)) for i in range(30)], "own.keras declares 251,"),
        ([(symbolic("assets/a"), "/etc")], "own.keras holds a link: 'assets/a'. It is refused."),
        ([("assets/a", "x"), ("assets/a/b", "x")], "own.keras holds 'assets/a/b' within what is no folder. It is refused."),
        ([("assets", "x"), ("assets/b", "x")], "own.keras holds an unexpected member: 'assets'. It is refused."),
        ([("assets/a", "x"), ("assets/a/", "")], "own.keras holds 'assets/a/' within what is no folder. It is refused."),
    ],
    ids=["bomb", "link", "below a file", "no folder", "both"],
)  # fmt: skip
def test_members_that_would_fill_the_disk_or_lead_away(plain, tmp_path, surplus, told):
    path = tmp_path / "own.keras"
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
        for member, content in surplus:
            target.writestr(member, content)
    for read in (kerastf.inspect, kerastf.load_model):
        with pytest.raises(FileFormatError) as caught:
            read(path)
        assert str(caught.value).startswith(told)


def test_what_is_no_ordinary_file(tmp_path):
    """Reading them would never end: so it runs where it can be ended."""
    import os

    os.mkfifo(tmp_path / "pipe")
    code = """
import sys, kerastf
for path in sys.argv[1:]:
    try:
        kerastf.inspect(path)
    except ValueError as error:
        print(error)
"""
    paths = ["/dev/zero", str(tmp_path / "pipe")]
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [f"{path} is not an ordinary file. Received: path={path!r}" for path in paths]


def test_weights_in_groups_without_end(plain, tmp_path):
    import h5py

    with h5py.File(tmp_path / "deep.h5", "w") as file:
        file["/".join("a" * 1500)] = 0.0

    def deepen(members):
        members["model.weights.h5"] = (tmp_path / "deep.h5").read_bytes()

    start = time.perf_counter()
    with pytest.raises(FileFormatError, match="deep.keras: its weights stand in more than 100 groups within groups."):
        kerastf.inspect(rewrite(plain, tmp_path / "deep.keras", deepen))
    assert time.perf_counter() - start < 2


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A file that needs no plugin, compiled."""
    model = kerastf.create_model("gpt", **{**TINY, "num_layers": 1})
    model.compile("adamw")
    path = tmp_path_factory.mktemp("plain") / "plain.keras"
    model.save(path)
    return path


def edited(path, out, change):
    """A copy whose configuration `change` altered."""

    def edit(members):
        config = json.loads(members["config.json"])
        change(config)
        members["config.json"] = json.dumps(config)

    return rewrite(path, out, edit)


def spelled(name, module=None, registered=None):
    return {"module": module, "class_name": name, "config": {}, "registered_name": registered}


NO_SUCH = "which is neither Keras's own nor registered here. If it is yours, run the code that registers it first"
TRUST = {
    "loss": (
        lambda c: c["compile_config"].update(loss=spelled("NoSuch", "keras_hub.layers")),
        FileFormatError, f"own.keras names keras_hub.layers.NoSuch (compile_config.loss), {NO_SUCH}",
    ),
    "in a list": (
        lambda c: c["compile_config"].update(metrics=[[spelled("NoSuch", "keras_hub.layers")]]),
        FileFormatError, f"own.keras names keras_hub.layers.NoSuch (compile_config.metrics), {NO_SUCH}",
    ),
    "type": (
        lambda c: c["compile_config"].update(
            loss={**spelled("__typespec__", "keras_hub.layers"), "spec_name": "X", "config": []}
        ),
        FileFormatError, f"own.keras names keras_hub.layers.__typespec__ (compile_config.loss), {NO_SUCH}",
    ),
    "function": (
        lambda c: c["compile_config"].update(loss={**spelled("function", "keras_hub.layers"), "config": "__numpy__"}),
        FileFormatError, f"own.keras names keras_hub.layers.__numpy__ (compile_config.loss), {NO_SUCH}",
    ),
    "registered": (
        lambda c: c["compile_config"].update(loss=spelled("mine>Own", "keras_hub.layers")),
        FileFormatError, f"own.keras names keras_hub.layers.mine>Own (compile_config.loss), {NO_SUCH}",
    ),
    "option": (
        lambda c: c["config"].update(activation=spelled("NoSuch", "keras_hub.layers")),
        FileFormatError, f"own.keras names keras_hub.layers.NoSuch (config.activation), {NO_SUCH}",
    ),
    "inside of keras": (
        lambda c: c["compile_config"].update(loss=spelled("X", "keras.src.backend.torch")),
        FileFormatError, f"own.keras names keras.src.backend.torch.X (compile_config.loss), {NO_SUCH}",
    ),
    "plugin": (
        lambda c: c["compile_config"].update(loss=spelled("X", None, "kerastf.template>norm.unit")),
        PluginError, "`template/unit` (norm) comes from the plugin kerastf-template 0.1.0, which is not allowed here.",
    ),
}  # fmt: skip


def test_a_file_imports_nothing_that_it_may_not(plain, tmp_path):
    """In one fresh process, because an import cannot be taken back."""
    for name, (change, _, _) in TRUST.items():
        edited(plain, tmp_path / f"{name}.keras", change).rename(tmp_path / name)
    code = f"""
import shutil, sys, kerastf, keras
keras.saving.register_keras_serializable("mine")(type("Own", (keras.losses.Loss,), {{}}))
for name in {list(TRUST)!r}:
    shutil.copy({str(tmp_path)!r} + "/" + name, {str(tmp_path / "own.keras")!r})
    try:
        kerastf.load_model({str(tmp_path / "own.keras")!r}, plugins="none")
    except (ValueError, ImportError) as error:
        print(type(error).__name__, error)
print([m for m in sys.modules if m.split(".")[0] in ("keras_hub", "tensorflow_text", "torch", "kerastf_template")])
"""
    out = fresh(code).splitlines()
    assert out[-1] == "[]" and len(out) == len(TRUST) + 1
    for line, (_, error, text) in zip(out, TRUST.values(), strict=False):
        assert line.startswith(f"{error.__name__} {text}")


@keras.saving.register_keras_serializable("saving_tests")
class Own(keras.losses.Loss):
    """A user's own loss."""

    def call(self, y_true, y_pred):
        return keras.ops.mean(y_pred, axis=-1)


@pytest.mark.parametrize(
    "compiled",
    [
        {"optimizer": keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.1, 9)), "loss": Own()},
        {"optimizer": keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "loss": keras.losses.mean_squared_error},
        {"optimizer": "sgd", "loss": keras.losses.Huber(dtype="mixed_bfloat16"), "metrics": ["mse", keras.metrics.MeanSquaredError()]},
    ],
    ids=["registered", "function", "by name"],
)  # fmt: skip
def test_what_a_user_compiles_with_loads(compiled, tmp_path):
    model = kerastf.create_model("gpt", **TINY)
    model.compile(**compiled)
    model.save(tmp_path / "m.keras")
    loaded = kerastf.load_model(tmp_path / "m.keras", plugins="none")
    assert type(loaded.optimizer) is type(model.optimizer) and type(loaded.loss) is type(model.loss)


def test_our_own_schedule_loads_where_nobody_imported_it(tmp_path):
    from kerastf.training import InverseSquareRoot

    model = kerastf.create_model("gpt", **TINY)
    model.compile(keras.optimizers.AdamW(InverseSquareRoot(12, warmup_steps=5)))
    model.save(tmp_path / "m.keras")
    code = f"import kerastf; print(type(kerastf.load_model({str(tmp_path / 'm.keras')!r}).optimizer._learning_rate).__name__)"
    assert fresh(code) == "InverseSquareRoot"


EDITS = {
    "later option": (
        lambda c: c["config"].update(brand_new_option=1), ConfigError,
        "e.keras: The model `gpt` has no option `brand_new_option` here; a later version may have written it. "
        "Received: brand_new_option=1",
    ),
    "frozen": (
        lambda c: c["config"].update(frozen=5), FileFormatError,
        "e.keras: `frozen` must be a list of the paths of weights. Received: frozen=5",
    ),
    "version": (
        lambda c: c["config"]["provenance"]["gpt"].update(config_version="x"), FileFormatError,
        "e.keras: `config_version` of `gpt` must be a positive integer. Received: config_version='x'",
    ),
    "provenance": (
        lambda c: c["config"].update(provenance=5), FileFormatError,
        "e.keras: `provenance` must say of each part where it comes from. Received: provenance=5",
    ),
    "claim": (
        lambda c: c["config"].update(provenance={"gpt": 5}), FileFormatError,
        "e.keras: `provenance` must say of each part where it comes from. Received: provenance={'gpt': 5}",
    ),
    "compile": (
        lambda c: c.update(compile_config=5), FileFormatError, "e.keras: `compile_config` is not a JSON object.",
    ),
    "compile keyword": (
        lambda c: c["compile_config"].update(nonsense=5), FileFormatError,
        "e.keras cannot be loaded: Trainer.compile() got an unexpected keyword argument 'nonsense'",
    ),
    "kind": (
        lambda c: c.update(class_name="function"), FileFormatError,
        "e.keras: the model is not an object of Keras. Received: {'module': 'kerastf.models.gpt', ",
    ),
    "no class": (
        lambda c: c["compile_config"]["optimizer"].pop("class_name"), FileFormatError,
        "e.keras cannot be loaded: it lacks 'class_name'",
    ),
    "slot": (
        lambda c: c["config"].update(norm={"name": 5}), UnknownNameError,
        "e.keras: An id is a string such as 'gpt.nano'. Received: 5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_edited_files_name_themselves_and_the_reason(plain, tmp_path, name):
    change, kind, text = EDITS[name]
    with pytest.raises(kind) as caught:
        kerastf.load_model(edited(plain, tmp_path / "e.keras", change))
    assert str(caught.value).startswith(text) and "\n" not in str(caught.value)


def test_every_truncation_is_a_clear_error(trained, tmp_path):
    whole = trained[2].read_bytes()
    for cut in range(0, len(whole), max(1, len(whole) // 40)):
        path = tmp_path / "cut.keras"
        path.write_bytes(whole[:cut])
        with pytest.raises(FileFormatError):
            kerastf.inspect(path)


def test_flipped_bytes_never_load_as_something_else(trained, tmp_path):
    whole = bytearray(trained[2].read_bytes())
    rng = np.random.default_rng(0)
    want = keras.ops.convert_to_numpy(trained[0](np.arange(8)[None]))
    for _ in range(25):
        broken = bytearray(whole)
        broken[int(rng.integers(len(whole)))] ^= 1 << int(rng.integers(8))
        path = tmp_path / "flip.keras"
        path.write_bytes(broken)
        try:
            model = kerastf.load_model(path, compile=False)
        except (FileFormatError, PluginError, LookupError, ValueError):
            continue
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(np.arange(8)[None])), want)
