"""Weights from elsewhere: what is read, what is refused and how, and what goes back."""

import base64
import json
import re
import resource
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf import convert, text
from kerastf.cli import main
from kerastf.convert import tensors
from kerastf.errors import ConfigError, FileFormatError
from kerastf.testing.subjects import shake
from kerastf.text.bpe import ALPHABET

SIZES = {"vocab_size": 40, "max_length": 12, "dim": 16, "num_layers": 2, "num_heads": 2, "dropout": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of a small GPT-2."""
    path = tmp_path_factory.mktemp("gpt2") / "folder"
    convert.save(kerastf.create_model("gpt", **SIZES), path)
    return path


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def change(folder, **settings):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))


def test_what_was_saved_is_loaded(folder):
    model = kerastf.create_model("gpt", weights=folder)
    again = kerastf.create_model("gpt", weights=str(folder), dropout=0.3, name="other")
    tokens = ops.ones((2, 5), dtype="int32")
    np.testing.assert_array_equal(model(tokens), again(tokens))
    assert again.name == "other" and again.options["dropout"] == 0.3
    assert convert.load(folder).count_params() == model.count_params()


def test_the_body_with_another_head(folder):
    model = kerastf.create_model("gpt", weights=folder, head={"name": "classifier", "num_classes": 3})
    whole = kerastf.create_model("gpt", weights=folder)
    tokens = ops.ones((2, 5), dtype="int32")
    assert tuple(model(tokens).shape) == (2, 3)
    for path in ("embedding/matrix", "layer_1/attention/qkv/kernel", "norm/gain"):
        pair = [next(w for w in m.weights if w.path == path) for m in (model, whole)]
        np.testing.assert_array_equal(*pair)
    assert float(ops.std(model.head.weights[0])) > 0  # begun anew, not left at zeros


@pytest.mark.parametrize("family, type, own, foreign", [
    ("bert", "distilbert", "masked_language_model", ("DistilBertForSequenceClassification", "classifier.weight", "pre_classifier.bias")),
    ("bert", "distilbert", "masked_language_model", ("DistilBertForQuestionAnswering", "qa_outputs.weight")),
    ("gpt", "gpt2", "language_model", ("GPT2ForSequenceClassification", "score.weight")),
    ("vit", "vit", "classifier", ("ViTForMaskedImageModeling", "decoder.0.weight", "decoder.0.bias")),
])  # fmt: skip
def test_the_body_of_a_folder_with_a_foreign_head(tmp_path, family, type, own, foreign):
    sizes = {k: v for k, v in SIZES.items() if family != "vit" or k not in ("vocab_size", "max_length")}
    if family == "vit":
        sizes |= {"image_size": 8, "patch_size": 4, "num_classes": 2, "mlp_dim": 32}
    if type == "distilbert":
        sizes |= {"num_segments": 0, "head": own}
    whole = kerastf.create_model(family, **sizes)
    convert.save(whole, tmp_path / "folder", type=type)
    have, prefix = tensors.open_folder(tmp_path / "folder"), convert.converter_for("hf", type).prefixes[0]
    arrays = {n: np.array(have.read(n)) for n in have if n.startswith(prefix)}

    def write(*more):
        every = {**arrays, **{n: np.ones((2, 2), "float32") for n in more}}
        tensors.write(tmp_path / "folder" / tensors.SINGLE, [(n, a.shape, lambda a=a: a) for n, a in every.items()])

    write(*foreign[1:])
    change(tmp_path / "folder", architectures=[foreign[0]])
    with pytest.raises(ConfigError, match="Say which you want, such as head='features'"):
        kerastf.create_model(family, weights=tmp_path / "folder")
    body = kerastf.create_model(family, weights=tmp_path / "folder", head="features")
    path = "layer_1/attention/qkv/kernel"
    np.testing.assert_array_equal(*(next(w for w in m.weights if w.path == path) for m in (whole, body)))
    write(f"{prefix}adapter.weight")
    with pytest.raises(FileFormatError, match="adapter.weight is not known"):
        kerastf.create_model(family, weights=tmp_path / "folder", head="features")


@pytest.mark.parametrize("name", ["pretraining", "masked_language_model"])
@pytest.mark.parametrize("asked", [False, True])
def test_a_matrix_of_the_heads_own_stays(tmp_path, name, asked):
    model = kerastf.create_model("bert", **SIZES, head={"name": name, "tied": False})
    shake(model, seed=0)
    convert.save(model, tmp_path / "bert")
    again = kerastf.create_model("bert", weights=tmp_path / "bert", **({"head": name} if asked else {}))
    assert again.head.tied is False
    tokens = {"tokens": np.arange(10).reshape(2, 5)}
    for want, got in zip(*(keras.tree.flatten(m(tokens)) for m in (model, again)), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_a_model_with_fresh_weights_is_not_changed(folder):
    kerastf.create_model("gpt", weights=folder)
    assert float(ops.std(kerastf.create_model("gpt", **SIZES).weights[0])) == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize("id, options, part", [
    ("gpt.nano", {}, "num_layers is 2 there, 3 was asked for"), ("gpt", {"dim": 32}, "dim is 16 there, 32 was asked for"),
    ("gpt", {"norm": "rms"}, "norm is 'layer' there, 'rms' was asked for"),
    ("gpt", {"norm_order": "post"}, "norm_order is 'pre' there"), ("bert", {}, "a model for `gpt`"),
])  # fmt: skip
def test_what_was_asked_for_must_fit(folder, id, options, part):
    with pytest.raises(ConfigError) as caught:
        kerastf.create_model(id, weights=folder, **options)
    assert part in str(caught.value)


@pytest.mark.parametrize("settings, part", [
    ({"model_type": "llama"}, "No converter reads models of the type 'llama'. Those that there are: bert, deit"),
    ({"activation_function": "mish"}, "activation_function is 'mish'"),
    ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
    ({"architectures": ["GPT2DoubleHeadsModel"]}, "holds GPT2DoubleHeadsModel, whose head is not known here"),
    ({"n_embd": 10**9}, "dim is 1,000,000,000"), ({"n_layer": 10**4}, "num_layers is 10,000"), ({"vocab_size": -1}, "vocab_size"),
])  # fmt: skip
def test_a_configuration_that_does_not_fit(copy, settings, part):
    change(copy, **settings)
    with pytest.raises((ConfigError, FileFormatError)) as caught:
        kerastf.create_model("gpt", weights=copy)
    assert part in str(caught.value)


@pytest.mark.parametrize("family, settings, kind", [
    ("gpt", {"activation_function": ["gelu"]}, "one of their names"),
    ("gpt", {"activation_function": {"gelu": 1}}, "one of their names"), ("gpt", {"n_embd": "many"}, "a whole number"),
    ("gpt", {"n_layer": None}, "a whole number"), ("gpt", {"n_layer": [2]}, "a whole number"),
    ("gpt", {"architectures": [["GPT2Model"]]}, "a list of names"),
    ("gpt", {"architectures": "GPT2Model"}, "a list of names"), ("gpt", {"architectures": 3}, "a list of names"),
    ("roberta", {"max_position_embeddings": None}, "a whole number"),
    ("roberta", {"type_vocab_size": "x"}, "a whole number"),
])  # fmt: skip
def test_a_setting_of_another_kind(copy, settings, kind, family):
    if family == "roberta":
        model = kerastf.create_model("bert", **SIZES, num_segments=1, pad_id=1, head="features")
        convert.save(model, copy, type="roberta")
    change(copy, **settings)
    with pytest.raises(FileFormatError) as caught:
        convert.load(copy)
    ((name, value),) = settings.items()
    assert str(caught.value) == f"The configuration's `{name}` must be {kind}. Received: {name}={value!r}"


def test_all_differences_at_once(copy):
    change(copy, activation_function="mish", add_cross_attention=True)
    with pytest.raises(ConfigError, match="mish.*add_cross_attention"):
        kerastf.create_model("gpt", weights=copy)


def test_files_that_can_run_code_are_refused(copy):
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(FileFormatError, match="can run code.*save_pretrained"):
        kerastf.create_model("gpt", weights=copy)


def test_what_cannot_be_written_is_listed(tmp_path):
    model = kerastf.create_model("gpt", **SIZES, norm="rms", position="rotary")
    with pytest.raises(ConfigError) as caught:
        convert.save(model, tmp_path / "no")
    assert "norm is" in str(caught.value) and "position is" in str(caught.value)
    assert not (tmp_path / "no").exists()
    with pytest.raises(ConfigError, match="No converter writes the model `rnn`"):
        convert.save(kerastf.create_model("rnn", vocab_size=9, dim=4, units=4, num_layers=1), tmp_path / "no")


def test_a_tokenizer_goes_there_and_back(tmp_path):
    texts = ["the cat sat on the mat, and the dog sat too!", "Straße, déjà vu 😀", "a\tb\n c  d"]
    for name, special in (("bpe", ("end", "pad")), ("wordpiece", text.BERT)):
        tokenizer = text.train(name, texts, 300 if name == "bpe" else 80, special_tokens=special)
        family = "gpt" if name == "bpe" else "bert"
        sizes = {k: v for k, v in SIZES.items() if k != "vocab_size"}
        model = kerastf.create_model(family, tokenizer=tokenizer, **sizes)
        convert.save(model, tmp_path / name)
        again = kerastf.create_model(family, weights=tmp_path / name)
        for line in texts:
            assert again.tokenizer.encode(line) == tokenizer.encode(line)
        assert again.tokenizer.special_ids == tokenizer.special_ids
        convert.save(again, tmp_path / f"{name}_again")
        for file in (tmp_path / name).iterdir():
            assert (tmp_path / f"{name}_again" / file.name).read_bytes() == file.read_bytes(), file.name


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A", "a", "é", "e", "中", "##文", "文", "b", "\x07"]
BERTS = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}
PLAIN = {**BERTS, "lowercase": False}


def pieces_json(folder, normalizer, cut="BertPreTokenizer"):
    """A folder of BERT whose word pieces are in a `tokenizer.json`."""
    sizes = {**SIZES, "vocab_size": len(PIECES)}
    convert.save(kerastf.create_model("bert", **sizes, head="masked_language_model"), folder)
    model = {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {p: i for i, p in enumerate(PIECES)},
             "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}  # fmt: skip
    parts = {"version": "1.0", "normalizer": normalizer, "pre_tokenizer": cut and {"type": cut}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(parts), encoding="utf-8")
    return folder


def sequence(*steps):
    return {"type": "Sequence", "normalizers": list(steps)}


@pytest.mark.parametrize("normalizer", [
    None, BERTS, PLAIN, sequence({"type": "NFC"}, PLAIN), sequence({"type": "NFC"}), {"type": "NFC"},
    sequence(sequence({"type": "NFC"}), BERTS), {**PLAIN, "handle_chinese_chars": False},
    {**PLAIN, "strip_accents": True}, {**BERTS, "clean_text": False}, {**BERTS, "strip_accents": False},
], ids=str)  # fmt: skip
def test_a_normalizer_is_followed(tmp_path, normalizer):
    from tokenizers import Tokenizer

    folder = pieces_json(tmp_path / "bert", normalizer)
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours = kerastf.create_model("bert", weights=folder).tokenizer
    for line in ["A a", "É é", "e\u0301 b", "中文 文", "a\x07 \x07", "B b A"]:
        assert ours.encode(line) == theirs.encode(line).ids, line
    assert text.from_config(ours.get_config()).encode("A 中文 \x07") == ours.encode("A 中文 \x07")


@pytest.mark.parametrize("normalizer, cut, part", [
    (sequence({"type": "NFKC"}, BERTS), "BertPreTokenizer", "has the normalizer ['NFKC', {'type': 'BertNormalizer'"),
    ({"type": "Lowercase"}, "BertPreTokenizer", "it would have to be BertNormalizer, NFC before it, or null."),
    (BERTS, "Whitespace", "has the pre_tokenizer ['Whitespace'], which no tokenizer here has"),
    (BERTS, None, "has the pre_tokenizer [], which no tokenizer here has"),
])  # fmt: skip
def test_word_pieces_that_are_cut_otherwise_are_refused(tmp_path, normalizer, cut, part):
    folder = pieces_json(tmp_path / "bert", normalizer, cut)
    with pytest.raises(FileFormatError) as caught:
        kerastf.create_model("bert", weights=folder)
    assert part in str(caught.value) and "tokenizer=None" in str(caught.value)
    assert kerastf.create_model("bert", weights=folder, tokenizer=None).tokenizer is None


@pytest.mark.parametrize("parts, part", [
    ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "add_prefix_space True"),
    ({"pre_tokenizer": {"type": "ByteLevel", "use_regex": False}}, "use_regex False"),
    ({"pre_tokenizer": {"type": "ByteLevel"}, "normalizer": {"type": "NFC"}}, "normalizer ['NFC']"),
])  # fmt: skip
def test_byte_pairs_that_are_cut_otherwise_are_refused(copy, parts, part):
    model = {"type": "BPE", "vocab": {sign: n for n, sign in enumerate(ALPHABET)}, "merges": []}
    (copy / "tokenizer.json").write_text(json.dumps({"model": model, **parts}), encoding="utf-8")
    with pytest.raises(FileFormatError, match=re.escape(f"tokenizer.json has the {part}")):
        kerastf.create_model("gpt", weights=copy)


def test_a_space_before_the_first_word_is_refused_beside_merges(copy):
    (copy / "vocab.json").write_text(json.dumps({sign: n for n, sign in enumerate(ALPHABET)}), encoding="utf-8")
    (copy / "merges.txt").write_text("#version: 0.2\n")
    (copy / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True}))
    with pytest.raises(FileFormatError, match="tokenizer_config.json has the add_prefix_space True"):
        kerastf.create_model("gpt", weights=copy)


def test_chinese_signs_that_do_not_stand_alone_go_there_and_back(tmp_path):
    tokenizer = text.WordPieceTokenizer.from_numbers(
        {p: i for i, p in enumerate(PIECES)}, "", lowercase=False, chinese=False
    )
    sizes = {k: v for k, v in SIZES.items() if k != "vocab_size"}
    convert.save(kerastf.create_model("bert", tokenizer=tokenizer, **sizes), tmp_path / "bert")
    again = kerastf.create_model("bert", weights=tmp_path / "bert").tokenizer
    assert again.encode("中文") == tokenizer.encode("中文") == [PIECES.index("中"), PIECES.index("##文")]


def test_preprocessing_goes_there_and_back(tmp_path):
    prepared = {"scale": 1 / 255, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
    model = kerastf.create_model(
        "vit",
        image_size=8,
        patch_size=4,
        dim=8,
        num_layers=1,
        num_heads=2,
        num_classes=3,
        preprocessing=prepared,
        mlp_dim=16,
    )
    convert.save(model, tmp_path / "vit")
    again = kerastf.create_model("vit", weights=tmp_path / "vit")
    assert again.options["preprocessing"] == prepared
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype("uint8")
    np.testing.assert_allclose(model(images), again(images), atol=1e-6)


def test_sentence_pieces_of_marian(tmp_path):
    texts = ["the cat sat on the mat", "a dog sat on the log", "the log and the cat"] * 20
    trained = text.train("sentencepiece", texts, 60, special_tokens=())
    (tmp_path / "source.spm").write_bytes(base64.b64decode(trained.model))
    shutil.copy(tmp_path / "source.spm", tmp_path / "target.spm")
    pieces = ["</s>", "<unk>", *(p for p in reversed(trained.pieces) if p != "<unk>"), ">>deu<<", "<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps({p: i for i, p in enumerate(pieces)}))
    numbers = {p: i for i, p in enumerate(pieces)}
    special = {"end": "</s>", "pad": "<pad>", "unknown": "<unk>"}
    made = text.SentencePieceTokenizer.from_file(tmp_path / "source.spm", numbers, special)
    got = made.encode(">>deu<< the cat")
    assert got[0] == numbers[">>deu<<"] and made.decode(got[1:]) == "the cat"
    assert [pieces[n] for n in made.encode("the dog")] == trained._processor.encode("the dog", out_type=str)
    assert made.unknown_id == 1 and 1 in made.encode("☃")
    assert (made.pad_id, made.end_id) == (len(pieces) - 1, 0)
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "max_length": 12, "mlp_dim": 16}
    model = kerastf.create_model(
        "transformer", tokenizer=made, source_tokenizer=made, start_id=made.pad_id, activation="silu", **sizes,
        position={"name": "sinusoidal", "layout": "concatenated"}, head={"name": "language_model", "bias": True},
    )  # fmt: skip
    convert.save(model, tmp_path / "marian")
    again = kerastf.create_model("transformer", weights=tmp_path / "marian")
    assert again.generate("the cat", max_length=6) == model.generate("the cat", max_length=6)
    for name in ("source.spm", "target.spm"):
        assert (tmp_path / "marian" / name).read_bytes() == (tmp_path / name).read_bytes()
    assert json.loads((tmp_path / "marian" / "vocab.json").read_text()) == numbers


# --- exported


def test_a_saved_model_gives_the_same(tmp_path):
    import tensorflow as tf

    model = kerastf.create_model("gpt", **SIZES)
    tokens = np.random.default_rng(0).integers(3, 40, (1, 5)).astype("int32")
    path = convert.export(model, tmp_path / "model", "savedmodel")
    loaded = tf.saved_model.load(str(path))
    np.testing.assert_allclose(loaded.serve(tokens), model(tokens), atol=1e-5)
    with pytest.raises(ConfigError, match="The path exists"):
        convert.export(model, path, "savedmodel")


FULL = """
import resource, signal, sys
from pathlib import Path
import kerastf
from kerastf import convert
from kerastf.plugin_tools.stubs import write_stubs

place, to = Path(sys.argv[1]), sys.argv[2]
model = kerastf.create_model("gpt", vocab_size=11, max_length=8, dim=32, num_layers=1, num_heads=2)
write = (lambda: write_stubs(place / "new" / "out")) if to == "stubs" else (lambda: convert.export(model, place / "new" / "out", to))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    write()
except OSError as error:
    print("refused", str(error).count("\\n"), list(place.iterdir()))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
write()
print([p.name for p in (place / "new").iterdir()])
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no limit of file sizes here")
@pytest.mark.parametrize("to", ["hf", "savedmodel", "stubs"])
def test_a_full_disk_leaves_nothing(tmp_path, to):
    command = [sys.executable, "-c", FULL, str(tmp_path), to]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-2:] == ["refused 0 []", "['out']"], done.stderr[-2000:]


@pytest.mark.parametrize("to", ["hf", "keras_hub"])
def test_what_lora_learnt_goes_along(tmp_path, to):
    model = kerastf.create_model("gpt", **SIZES)
    model.enable_lora(2)
    for weight in model.trainable_variables:
        weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    if to == "hf":
        convert.save(model, tmp_path / "folder")
        again = convert.load(tmp_path / "folder")
    else:
        pytest.importorskip("keras_hub")
        again = convert.from_keras_hub(convert.to_keras_hub(model), head="language_model")
    tokens = ops.ones((2, 5), dtype="int32")
    np.testing.assert_allclose(again(tokens), model(tokens), atol=1e-4)


def test_mistakes_of_exports(tmp_path):
    model = kerastf.create_model("gpt", **SIZES)
    with pytest.raises(ConfigError, match="to hf, savedmodel, onnx, litert"):
        convert.export(model, tmp_path / "x", "coreml")
    with pytest.raises(ConfigError, match="ends in .tflite"):
        convert.export(model, tmp_path / "x.lite", "litert")


def test_the_command_line(folder, tmp_path, capsys):
    file = tmp_path / "model.keras"
    assert main(["convert", str(folder), str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: gpt, 7,424 parameters\n"
    assert main(["export", str(file), "--to", "hf"]) == 0
    assert (tmp_path / "model_hf" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert main(["convert", str(folder), str(tmp_path / "model.h5")]) == 2
    assert main(["convert", str(tmp_path / "none"), str(file)]) == 2
    assert main(["export", str(file), "--to", "hf"]) == 2
    assert "The path exists" in capsys.readouterr().err


# --- KerasHub


def backbones():
    from keras_hub.models import BertBackbone, GPT2Backbone, ViTBackbone

    sizes = {"num_layers": 2, "num_heads": 4, "hidden_dim": 16, "intermediate_dim": 40, "dropout": 0.0}
    text = {"vocabulary_size": 50, "max_sequence_length": 12}
    images = {"image_shape": (8, 16, 3), "patch_size": (4, 8), "mlp_dim": 40}
    yield "gpt", lambda: GPT2Backbone(**sizes, **text)
    yield "bert", lambda: BertBackbone(**sizes, **text, num_segments=3)
    yield (
        "vit",
        lambda: ViTBackbone(**{k: v for k, v in sizes.items() if k not in ("dropout", "intermediate_dim")}, **images),
    )


@pytest.mark.parametrize("family", ["gpt", "bert", "vit"])
def test_backbones_there_and_back(family):
    backbone = dict(backbones())[family]()
    shake(backbone, 3)
    model = convert.from_keras_hub(backbone)
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 50, (3, 10)).astype("int32")
    keep = np.arange(10) < np.array([10, 6, 8])[:, None] if family == "bert" else np.ones((3, 10), bool)
    tokens = np.where(keep, tokens, 0).astype("int32")
    segments = rng.integers(0, 3, (3, 10)).astype("int32")
    if family == "vit":
        theirs = ours = rng.normal(size=(3, 8, 16, 3)).astype("float32")
    else:
        theirs = {"token_ids": tokens, "padding_mask": keep.astype("int32")}
        ours = {"tokens": tokens, "segments": segments} if family == "bert" else tokens
        theirs |= {"segment_ids": segments} if family == "bert" else {}
    want = backbone(theirs)
    want = ops.convert_to_numpy(want["sequence_output"] if family == "bert" else want)
    got = ops.convert_to_numpy(model(ours))
    kept = keep if family != "vit" else np.ones(got.shape[:2], bool)
    np.testing.assert_allclose(got[kept], want[kept], atol=2e-5)
    again = convert.to_keras_hub(model)
    assert again.get_config().keys() == backbone.get_config().keys()
    for a, b in zip(again.weights, backbone.weights, strict=True):
        assert a.path == b.path
        np.testing.assert_array_equal(a, b)


def test_a_backbone_with_another_head():
    backbone = dict(backbones())["gpt"]()
    model = convert.from_keras_hub(backbone, head="language_model")
    assert model.generate([3, 4, 5], max_length=8).shape == (8,)
    with pytest.raises(ConfigError, match="No converter reads models of the type 'GRU'"):
        convert.from_keras_hub(keras.layers.GRU(3))
    with pytest.raises(ConfigError, match="norm is"):
        convert.to_keras_hub(kerastf.create_model("gpt", **SIZES, norm="rms"))


# --- vectors


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_vectors_go_there_and_back(binary, tmp_path):
    tokenizer = text.train("word", ["the cat sat on the mat", "the dog sat", "l'eau"], special_tokens=())
    model = kerastf.create_model("word2vec", tokenizer=tokenizer, dim=6)
    model.save_word2vec(tmp_path / "v", binary=binary)
    again = kerastf.create_model("word2vec", weights=tmp_path / "v")
    np.testing.assert_array_equal(again.vectors, model.vectors)
    assert again.tokenizer.words == model.tokenizer.words
    assert again.nearest("cat", k=3) == model.nearest("cat", k=3)


@pytest.mark.parametrize("data", [
    b"", b"2\n", b"x y\n", b"2 2\na 1 2\n", b"2 2\na 1 2\nb 1\n", b"2 2\na 1 2\na 1 2\n", b"999999999 999\na 1\n", b"0 2\n",
    b"2 2\n\xff\xfe 1 2\nb 1 2\n", b"2 1\n" + b"a" * 5000, b"1 4\na " + bytes(15),
], ids=range(11))  # fmt: skip
def test_files_that_are_no_vectors(data, tmp_path):
    (tmp_path / "v").write_bytes(data)
    with pytest.raises(FileFormatError):
        kerastf.create_model("word2vec", weights=tmp_path / "v")


def test_a_word_that_would_be_cut_is_left_out(tmp_path):
    (tmp_path / "v").write_text("4 2\nthe 1 2\ne.g. 3 4\nNew_York 5 6\ncat 7 8\n")
    model = kerastf.create_model("word2vec", weights=tmp_path / "v")
    assert model.tokenizer.words == ["the", "New_York", "cat"]
    np.testing.assert_array_equal(model.vector("cat"), [7, 8])
    with pytest.raises(ConfigError, match="A file of vectors is a `word2vec`"):
        kerastf.create_model("gpt", weights=tmp_path / "v")


# --- fuzzed


def broken(data, rng):
    """One of many ways to spoil a file."""
    data, kind = bytearray(data), rng.integers(5)
    length = int.from_bytes(data[:8], "little")
    if kind == 0:  # a byte anywhere in the header
        data[rng.integers(8, 8 + length)] = rng.integers(256)
    elif kind == 1:  # the length
        data[rng.integers(8)] = rng.integers(256)
    elif kind == 2:
        data = data[: rng.integers(len(data))]
    elif kind == 3:  # a number of the header
        header = data[8 : 8 + length].decode()
        places = [i for i, c in enumerate(header) if c.isdigit()]
        at = places[rng.integers(len(places))]
        header = header[:at] + str(rng.choice([0, 9, 10**9, 2**63, -1])) + header[at + 1 :]
        data = len(header.encode()).to_bytes(8, "little") + header.encode() + data[8 + length :]
    else:
        at = rng.integers(len(data))
        data[at:at] = rng.bytes(rng.integers(1, 50))
    return bytes(data)


def fuzz(folder, count, seed):
    """How many of that many spoilt files were refused; any other error, or a slow one, is raised."""
    import time

    path = folder / "model.safetensors"
    sound, rng, refused = path.read_bytes(), np.random.default_rng(seed), 0
    converter = convert.converter_for("hf", "gpt2")
    options = {**converter.options(tensors.read_json(folder / "config.json")), "head": "language_model"}
    shapes = {w.path: tuple(w.shape) for w in kerastf.create_model("gpt", **options).weights}
    for _ in range(count):
        path.write_bytes(broken(sound, rng))
        began = time.monotonic()
        try:
            have = tensors.open_folder(folder)
            for rule in convert.match(converter, options, shapes, have).values():
                rule.read(have, options)
        except FileFormatError:
            refused += 1
        assert time.monotonic() - began < 5
    path.write_bytes(sound)
    return refused


def test_spoilt_files_do_nothing_but_fail(copy):
    assert fuzz(copy, 500, seed=0) > 300  # a changed weight is no error


@pytest.mark.slow
def test_ten_thousand_spoilt_files(copy):
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = fuzz(copy, 10_000, seed=1)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(
        f"{refused} of 10,000 refused; memory grew by {grown} KB, the file has {(copy / 'model.safetensors').stat().st_size} bytes"
    )
    assert refused > 6_000 and grown * 1024 < 2**25
