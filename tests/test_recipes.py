"""Recipes: settings, defaults, and every mistake told before anything is read or built."""

import io
import tomllib
from pathlib import Path

import keras
import numpy as np
import pytest

import kerastf
from kerastf import training
from kerastf.errors import ConfigError, FileFormatError
from kerastf.training import callbacks
from kerastf.training import recipe as recipes

ROOT = Path(__file__).parents[1] / "recipes"
GOOD = {"model": {"name": "gpt.nano"}, "data": {"source": "embedded:corpus"}}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.toml")), ids=lambda p: p.stem)
def test_recipes_that_come_along(path):
    """Each is sound, tells its command, and what it should reach."""
    recipe = training.read_recipe(path)
    assert f"kerastf train recipes/{path.relative_to(ROOT)}" in path.read_text()
    assert recipe.expect["metric"]


def test_every_family_has_a_small_one():
    from kerastf import registry

    found = {training.read_recipe(p).family for p in (ROOT / "small").glob("*.toml")}
    assert found == {e.id for e in registry.entries("model") if "/" not in e.id}


def test_settings_win_and_may_reach_into_blocks(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[model]\nname = "gpt.nano"\nattention = "multi_head"\n[data]\nsource = "embedded:corpus"\n')
    recipe = training.read_recipe(
        path, ["training.steps=5", "model.attention.num_kv_heads=1", "model.norm=rms", "data.length=16"]
    )
    assert recipe.name == "mine" and recipe.training["steps"] == 5 and recipe.data["length"] == 16
    assert recipe.model["attention"] == {"name": "multi_head", "num_kv_heads": 1} and recipe.model["norm"] == "rms"
    assert (recipe.training["evaluate_every"], recipe.training["save_every"]) == (1, 1)


def test_written_and_read_again_it_is_the_same(tmp_path):
    odd = {
        **GOOD,
        "callbacks": [{"name": "ReduceLROnPlateau", "patience": 2}],
        "expect": {"metric": "loss", "at_most": 3},
    }
    odd["data"] = {**GOOD["data"], "tokenizer": {"name": "character", "special_tokens": ["end", 'a"b\\c\n']}}
    recipe = recipes.check(odd)
    assert recipes.check(tomllib.loads(recipe.to_toml())).tables == recipe.tables
    assert tomllib.loads(recipe.to_toml())["data"]["tokenizer"]["special_tokens"][1] == 'a"b\\c\n'


@pytest.mark.parametrize(
    ("head", "task"), [("classifier", "classification"), ("tagger", "tagging"), ("language_model", "language")]
)
def test_the_task_follows_from_the_head(head, task):
    model = {"name": "gpt.nano", "head": {"name": head, **({} if head == "language_model" else {"num_classes": 2})}}
    source = {"classification": "sentiment", "tagging": "tagged_sentences", "language": "corpus"}[task]
    recipe = recipes.check({"model": model, "data": {"source": f"embedded:{source}"}})
    assert recipe.data["task"] == task


def test_schedules():
    tables = recipes.check({**GOOD, "schedule": {"name": "cosine", "warmup": 10, "end": 1e-5}}).tables
    rate = recipes.make_optimizer(tables)._learning_rate
    found = [float(rate(step)) for step in (0, 5, 10, 505, 1000)]
    np.testing.assert_allclose(found, [0, 5e-4, 1e-3, (1e-3 + 1e-5) / 2, 1e-5], rtol=1e-4)
    tables = recipes.check({**GOOD, "schedule": {"name": "inverse_square_root", "warmup": 100}}).tables
    rate = recipes.make_optimizer(tables)._learning_rate
    np.testing.assert_allclose([float(rate(s)) for s in (50, 100, 400)], [5e-4, 1e-3, 5e-4], rtol=1e-4)
    tables = recipes.check(
        {**GOOD, "optimizer": {"name": "sgd", "momentum": 0.9, "accumulate": 4, "average": 0.99}}
    ).tables
    optimizer = recipes.make_optimizer(tables)
    assert isinstance(optimizer, keras.optimizers.SGD) and optimizer.momentum == 0.9
    assert optimizer.gradient_accumulation_steps == 4 and optimizer.use_ema and optimizer.ema_momentum == 0.99


def mistake(**tables):
    return lambda: recipes.check({**GOOD, **tables})


MISTAKES = [
    (mistake(traning={"steps": 5}), "A recipe has no table `traning`. Did you mean `training`? Received: traning={'steps': 5}"),
    (mistake(training={"step": 5}), "[training] has no option `step`. Did you mean `steps`? Received: step=5"),
    (mistake(training={"steps": 0}), "[training]: `steps` must be at least 1. Received: steps=0"),
    (mistake(training={"steps": "many"}), "[training]: `steps` must be an integer. Received: steps='many'"),
    (mistake(training={"precision": "float8"}), "[training]: `precision` must be one of 'float32', 'mixed_bfloat16', 'mixed_float16', 'bfloat16'. Received: precision='float8'"),
    (mistake(schedule={"name": "linear"}), "[schedule]: `name` must be one of 'constant', 'cosine', 'inverse_square_root'. Received: name='linear'"),
    (mistake(schedule={"warmup": 5}), "[schedule]: a constant rate has no warmup and no end. Received: warmup=5, end=0.0"),
    (mistake(schedule={"name": "cosine", "warmup": 1000}), "[schedule]: `warmup` must be less than the 1000 steps. Received: warmup=1000"),
    (mistake(schedule={"name": "inverse_square_root"}), "[schedule]: inverse_square_root needs `warmup` of at least 1. Received: warmup=0"),
    (mistake(optimizer={"rate": 0.0}), "[optimizer]: `rate` must be a positive number. Received: rate=0.0"),
    (mistake(optimizer={"rate": float("inf")}), "[optimizer]: `rate` must be a positive number. Received: rate=inf"),
    (mistake(optimizer={"average": 1.5}), "[optimizer]: `average` must be in (0, 1). Received: average=1.5"),
    (mistake(expect={"metric": "loss"}), "[expect]: give one of `at_most` and `at_least`."),
    (mistake(expect={"at_most": 1.0}), "[expect] needs `metric`. Received: nothing for `metric`"),
    (mistake(model={}), "[model]: `name` must be a model such as 'gpt.nano'. Received: name=None"),
    (mistake(model={"name": "gtp.nano"}), "There is no model `gtp.nano`. Did you mean `gpt.nano`? What there is: kerastf list --kind model"),
    (mistake(model={"name": "gpt.nano", "n_embd": 8}), "model `gpt.nano` has no option `n_embd`. Did you mean `dim`? Received: n_embd=8"),
    (mistake(model={"start": "runs/a", "dim": 8}), "A model that starts from a file has its options from there; only its head may be another. Received: dim=8"),
    (mistake(data={}), "[data] needs `source`. Received: nothing for `source`"),
    (mistake(data={"source": "embedded:corpse"}), "[data]: There is no embedded set `corpse`. Did you mean `corpus` or `copy`? "),
    (mistake(data={"source": "embedded:corpus", "lenght": 5}), "[data]: The task `language` from this source has no option `lenght` (did you mean `length`?). "),
    (mistake(callbacks=[{"name": "EarlyStoping"}]), "A callback is a table with the name of one of Keras's. Did you mean `EarlyStopping`? Received: {'name': 'EarlyStoping'}"),
    (mistake(callbacks=[{"name": "LambdaCallback", "on_epoch": 1}]), "callback `LambdaCallback` has no place in a recipe: it needs functions."),
    (mistake(callbacks=[{"name": "TerminateOnNaN"}]), "callback `TerminateOnNaN` has no place in a recipe: a run stops by itself where the loss is no number."),
    (mistake(callbacks=[{"name": "SwapEMAWeights"}]), "callback `SwapEMAWeights` has no place in a recipe: `average` of [optimizer] does that."),
    (mistake(callbacks=[{"name": "EarlyStopping", "restore_best_weights": True}]), "callback `EarlyStopping`: in a run `restore_best_weights` can only be False: best.keras holds the best weights. Received: restore_best_weights=True"),
    (mistake(callbacks=[{"name": "ModelCheckpoint", "filepath": "a.keras", "save_freq": 5}]), "callback `ModelCheckpoint`: in a run `save_freq` can only be 'epoch': it saves at evaluations. Received: save_freq=5"),
    (mistake(callbacks=[{"name": "CSVLogger", "filename": "a.csv", "append": False}]), "callback `CSVLogger`: in a run `append` can only be True: a run that goes on would begin the file anew. Received: append=False"),
    (mistake(schedule={"name": "cosine", "end": -0.01}), "[schedule]: `end` is a rate between 0 and the optimizer's. Received: end=-0.01, rate="),
    (mistake(schedule={"name": "cosine", "end": 5.0}), "[schedule]: `end` is a rate between 0 and the optimizer's. Received: end=5.0, rate="),
    (mistake(callbacks=[{"name": "EarlyStopping", "patience": "x"}]), "callback `EarlyStopping`: `patience` must be a number. Received: patience='x'"),
    (mistake(callbacks=[{"name": "ReduceLROnPlateau"}], schedule={"name": "cosine"}), "callback `ReduceLROnPlateau` needs a constant rate. Received: [schedule] name='cosine'"),
    (mistake(callbacks=[{"name": "EarlyStopping", "patiense": 1}]), "callback `EarlyStopping`: "),
    (mistake(optimizer={"clipnorm": "x"}), "[optimizer]: `clipnorm` must be a number. Received: clipnorm='x'"),
    (mistake(optimizer={"weight_decay": "abc"}), "[optimizer]: `weight_decay` must be a number. Received: weight_decay='abc'"),
    (mistake(data={"source": "embedded:corpus", "size": "x"}), "[data]: `size` must be at least 1. Received: size='x'"),
    (mistake(model={"name": "gpt.nano", "max_length": 12}, data={"source": "embedded:corpus", "length": 16}), "[data]: `length` must be at most the 12 positions that the model has: set it, or `max_length` of [model]. Received: length=16"),
    (mistake(model={"name": "gpt.nano", "max_length": 12}), "[data]: `length` must be at most the 12 positions that the model has: set it, or `max_length` of [model]. Received: length=128"),
    (mistake(model=5), "`model` must be a table. Received: model=5"),
    (mistake(model="gpt.nano"), "`model` must be a table. Received: model='gpt.nano'"),
    (mistake(model=[{"name": "gpt.nano"}]), "`model` must be a table. Received: model=[{'name': 'gpt.nano'}]"),
    (mistake(model={"start": "none.keras"}), "[model]: `start`: There is no file none.keras. "),
    (mistake(data="corpus"), "`data` must be a table. Received: data='corpus'"),
    (lambda: training.train({**GOOD, "training": 5}), "`training` must be a table. Received: training=5"),
    (lambda: training.read_recipe({**GOOD, "training": {"steps": 5}}, ["training.steps.x=1"]), "`steps` is 5, which has no options. Received: 'training.steps.x=1'"),
    (lambda: training.read_recipe({**GOOD, "model": "gpt"}, ["model.dim=1"]), "`model` must be a table. Received: model='gpt'"),
    (lambda: training.read_recipe({**GOOD, "callbacks": [{"name": "CSVLogger"}]}, ["callbacks.a.b=1"]), "`callbacks` is a list of tables: write it in a recipe file. Received: 'callbacks.a.b=1'"),
    (lambda: training.read_recipe("gpt.nano", ["steps=5"]), "A setting looks like training.steps=500. Received: 'steps=5'"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "text"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes(make, text):
    with pytest.raises((ValueError, LookupError)) as error:
        make()
    assert str(error.value).startswith(text), str(error.value)


def test_tensorboard_is_asked_for_at_once(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as error:
        recipes.check({**GOOD, "callbacks": [{"name": "TensorBoard"}]})
    assert str(error.value).startswith("callback `TensorBoard` needs the package tensorboard: pip install tensorboard.")


def test_the_task_follows_from_a_start(tmp_path):
    """From the saved model, or the head that takes the place of its own; from a run, its own task."""
    path = tmp_path / "good.keras"
    kerastf.create_model("gpt", vocab_size=9, max_length=8, dim=8, num_layers=1, num_heads=2).save(path)
    for model, source, task in (
        ({"start": str(path)}, "corpus", "language"),
        ({"start": str(path), "head": "classifier"}, "sentiment", "classification"),
    ):
        recipe = recipes.check({"model": model, "data": {"source": f"embedded:{source}"}})
        assert recipe.data["task"] == task
    folder = training.RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.claim(recipes.check({**GOOD, "data": {"source": "embedded:corpus", "task": "sequences"}}))
    assert recipes.check({**GOOD, "model": {"start": str(folder.path)}}).data["task"] == "sequences"


def test_a_metric_that_will_not_be_measured(tmp_path):
    """Told before the first step, also of a head with several outputs."""
    tiny = {"dim": 8, "num_layers": 1, "num_heads": 2}
    data = {"source": "embedded:stories", "count": 40, "length": 16, "tokenizer": "word"}
    for model, table, known in (
        ({"name": "gpt", "max_length": 16}, {**data, "task": "language"}, "loss, accuracy, val_loss, val_accuracy"),
        ({"name": "bert", "max_length": 16}, data, "loss, masked_tokens_loss, masked_tokens_accuracy, "
         "next_sentence_loss, next_sentence_accuracy, val_loss, val_masked_tokens_loss, val_masked_tokens_accuracy, "
         "val_next_sentence_loss, val_next_sentence_accuracy"),
    ):  # fmt: skip
        tables = {"model": {**model, **tiny}, "data": table, "training": {"monitor": "val_bleu", "steps": 2}}
        with pytest.raises(ConfigError) as error:
            training.train(tables, tmp_path / model["name"], stream=io.StringIO())
        assert str(error.value) == f"[training]: `monitor` must be one of {known}. Received: monitor='val_bleu'"


def test_all_mistakes_at_once():
    with pytest.raises(ConfigError) as error:
        recipes.check({"model": {"name": "gpt.nano", "depth": 3}, "data": {"sauce": 1}, "training": {"steps": 0}})
    assert len(error.value.problems) == 3, error.value


def test_files_that_are_none(tmp_path):
    with pytest.raises(FileFormatError, match="The recipe cannot be read: No such file or directory"):
        training.read_recipe(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[model\n")
    with pytest.raises(FileFormatError, match="The recipe is not valid TOML: "):
        training.read_recipe(tmp_path / "bad.toml")


def test_rows_of_a_csv_file_outlive_a_stop(tmp_path):
    (path,) = callbacks.make_callbacks([{"name": "CSVLogger", "filename": str(tmp_path / "a.csv")}])
    assert path.append
