"""ELMo as published: the authors' own weights and outputs, their files, their sizes, their way to spell words."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from keras import ops
from tensors import numpy
from tiny_elmo import numpy_layers, sigmoid

import kerastf
from kerastf import bilm_files, compat, text
from kerastf.errors import ConfigError, FileFormatError, InputError

SHARED = Path(os.environ.get("KERASTF_DATA", Path(__file__).parents[2] / "shared" / "data")) / "elmo_bilm"


# --- the original's files


@pytest.mark.skipif(not SHARED.is_dir(), reason="the original biLM is not here; KERASTF_DATA says where data is")
def test_the_authors_weights_give_the_authors_outputs():
    """Their test reads sentence i of three lists as one batch and keeps the states from batch to batch."""
    h5py = pytest.importorskip("h5py")
    model = bilm_files.load(SHARED / "options.json", SHARED / "lm_weights.hdf5")
    lists = json.loads((SHARED / "lm_embeddings_sentences.json").read_text())
    files = [h5py.File(SHARED / f"lm_embeddings_{k}.hdf5") for k in range(3)]
    states = [[layer.init_state(3) for layer in layers] for layers in model.directions]
    read = compat.graph(model.read)  # all batches are of one length, so that there is one graph
    worst, count = 0.0, 0
    for i in range(len(lists[0])):
        tokens = model.tokenizer.encode_characters([sentences[i] for sentences in lists])
        tokens = np.pad(tokens, ((0, 0), (0, 55 - tokens.shape[1]), (0, 0)))
        layers, states = read(ops.convert_to_tensor(tokens), states)
        layers = numpy(layers)
        np.testing.assert_array_equal(layers[:, 0, :, :16], layers[:, 0, :, 16:])
        for k, file in enumerate(files):
            forward, backward = file[str(i)][...]  # of the last layer
            top = layers[k, -1, 1 : 1 + len(forward)]
            worst = max(worst, np.abs(top[:, :16] - forward).max(), np.abs(top[:, 16:] - backward).max())
            count += forward.size + backward.size
        if i == 0:  # without states there are no batches: the first of them is what `embed` gives
            alone = model.embed([lists[0][0]])
            np.testing.assert_allclose(alone[0], layers[0, :, 1 : 1 + alone.shape[2]], atol=1e-5)
            want = numpy_layers(model, layers[0, 0, : alone.shape[2] + 2, :16].astype("float64"))
            np.testing.assert_allclose(layers[0, :, : alone.shape[2] + 2], want, atol=1e-5)
    print(f"\n{count} values of theirs, largest difference {worst:.1e}")
    assert count == 23_808 and worst < 1e-5


OPTIONS = {
    "lstm": {"cell_clip": 0.5, "use_skip_connections": True, "n_layers": 2, "proj_clip": 0.3, "projection_dim": 4, "dim": 6},
    "char_cnn": {
        "embedding": {"dim": 3}, "filters": [[1, 4], [3, 5]], "n_highway": 1, "n_characters": 262, "max_characters_per_token": 10,
        "activation": "relu",
    },
}  # fmt: skip


@pytest.fixture
def files(tmp_path):
    """Random weights in the original's layout."""
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    shapes = {
        "char_embed": (261, 3), "CNN/W_cnn_0": (1, 1, 3, 4), "CNN/W_cnn_1": (1, 3, 3, 5), "CNN/b_cnn_0": (4,), "CNN/b_cnn_1": (5,),
        "CNN_high_0/W_carry": (9, 9), "CNN_high_0/b_carry": (9,), "CNN_high_0/W_transform": (9, 9), "CNN_high_0/b_transform": (9,),
        "CNN_proj/W_proj": (9, 4), "CNN_proj/b_proj": (4,),
    }  # fmt: skip
    for direction, cell in np.ndindex(2, 2):
        name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{cell}/LSTMCell"
        shapes.update({f"{name}/W_0": (8, 24), f"{name}/B": (24,), f"{name}/W_P_0": (6, 4)})
    tensors = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    with h5py.File(tmp_path / "weights.hdf5", "w") as file:
        for name, tensor in tensors.items():
            file[name] = tensor
    (tmp_path / "options.json").write_text(json.dumps(OPTIONS))
    return tmp_path / "options.json", tmp_path / "weights.hdf5", tensors


def their_layer(tensors, direction, cell, xs):
    """The original's cell as TensorFlow 1 wrote it: one kernel, gates in the order i, j, f, o, 1 added to f."""
    name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{cell}/LSTMCell/"
    m, c, outputs = np.zeros(4), np.zeros(6), []
    for x in xs:
        i, j, f, o = np.split(np.concatenate([x, m]) @ tensors[name + "W_0"] + tensors[name + "B"], 4)
        c = np.clip(sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j), -0.5, 0.5)
        m = np.clip((sigmoid(o) * np.tanh(c)) @ tensors[name + "W_P_0"], -0.3, 0.3)
        outputs.append(m + x if cell else m)
    return np.array(outputs)


def test_a_file_in_the_original_layout(files):
    options, weights, tensors = files
    model = bilm_files.load(options, weights)
    layers = model.embed([["so", "it", "goes"], ["unimaginably"]])
    assert layers.shape == (2, 3, 3, 8)
    tokens = model.tokenizer.encode_characters([["so", "it", "goes"]])
    x = numpy(model.embedding(tokens))[0]
    for direction, order in ((0, 1), (1, -1)):
        h = x[::order]
        for cell in range(2):
            h = their_layer(tensors, direction, cell, h)
            got = layers[0, cell + 1, :, 4 * direction : 4 * direction + 4]
            np.testing.assert_allclose(got, h[::order][1:-1], atol=1e-5)
    tagger = model.with_head("tagger", num_classes=3)
    assert tagger.predict(tokens, verbose=0).shape == (1, 5, 3)
    reader = bilm_files.load(options, weights, head={"name": "bidirectional_language_model"}, vocab_size=7)
    assert reader(tokens).shape == (1, 5, 2, 7)


def external(h5py, file, name, folder):
    shape = file[name].shape
    (folder / "private.bin").write_bytes(b"secret" * 4000)
    del file[name]
    file.create_dataset(name, shape, "float32", external=[(str(folder / "private.bin"), 0, 4 * int(np.prod(shape)))])


def virtual(h5py, file, name, folder):
    layout = h5py.VirtualLayout(file[name].shape, "float32")
    layout[:] = h5py.VirtualSource(str(other_file(h5py, file, name, folder)), name, file[name].shape)
    del file[name]
    file.create_virtual_dataset(name, layout)


def other_file(h5py, file, name, folder):
    with h5py.File(folder / "other.hdf5", "w") as other:
        other[name] = file[name][...]
    return folder / "other.hdf5"


def link_outside(h5py, file, name, folder):
    other = other_file(h5py, file, name, folder)
    del file[name]
    file[name] = h5py.ExternalLink(str(other), name)


def link_inside(h5py, file, name, folder):
    file.move(name, "elsewhere")
    file[name] = h5py.SoftLink("/elsewhere")


def folder_outside(h5py, file, name, folder):
    other, top = other_file(h5py, file, name, folder), name.partition("/")[0]
    del file[top]
    file[top] = h5py.ExternalLink(str(other), top)


@pytest.mark.parametrize(
    "hide, told",
    [
        (external, "is kept in another file"),
        (virtual, "is kept in another file"),
        (link_outside, "is a link to somewhere else"),
        (link_inside, "is a link to somewhere else"),
        (folder_outside, "is a link to somewhere else"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_file_that_points_to_another_is_refused(files, tmp_path, hide, told):
    h5py = pytest.importorskip("h5py")
    options, weights, _ = files
    with h5py.File(weights, "a") as file:
        hide(h5py, file, "CNN_proj/W_proj", tmp_path)
    with pytest.raises(FileFormatError) as caught:
        bilm_files.load(options, weights)
    assert str(caught.value) == f"weights.hdf5: CNN_proj/W_proj {told}. It is refused."


def test_files_that_do_not_fit(files, tmp_path):
    h5py = pytest.importorskip("h5py")
    options, weights, _ = files
    with h5py.File(weights, "a") as file:
        del file["CNN/b_cnn_1"]
        del file["char_embed"]
        file["char_embed"] = np.zeros((50, 3))
    with pytest.raises(FileFormatError) as caught:
        bilm_files.load(options, weights)
    assert str(caught.value) == (
        "weights.hdf5 does not fit the options: char_embed has shape (50, 3), not (261, 3); CNN/b_cnn_1 is missing."
    )
    with pytest.raises(FileFormatError, match="options.json is not an HDF5 file that can be read"):
        bilm_files.load(options, options)
    (tmp_path / "other.json").write_text('{"lstm": {}}')
    with pytest.raises(FileFormatError) as caught:
        bilm_files.load(tmp_path / "other.json", weights)
    assert str(caught.value) == (
        "other.json is not the options of a two-direction language model over characters: it lacks 'char_cnn'."
    )


@pytest.mark.parametrize("preset, size", [("small", 13_593_296), ("medium", 28_027_728), ("original", 93_600_848)])
def test_published_sizes(preset, size):
    """13.6, 28.0 and 93.6 million as published, without the softmax; the mix adds its four."""
    assert kerastf.count_parameters(f"elmo.{preset}", head="features") == size + 4
    dim = {"small": 128, "medium": 256, "original": 512}[preset]
    assert kerastf.count_parameters(f"elmo.{preset}") == size + 793_471 * (dim + 1)


# --- words as characters


def test_characters_of_a_word():
    tokenizer = text.WordCharacterTokenizer(["a"], max_characters=8)
    got = tokenizer.encode_characters([["né"], ["a", "b"]])
    assert got.shape == (2, 4, 8)
    assert got[0].tolist() == [
        [259, 257, 260, 261, 261, 261, 261, 261],
        [259, 111, 196, 170, 260, 261, 261, 261],
        [259, 258, 260, 261, 261, 261, 261, 261],
        [0] * 8,
    ]
    assert tokenizer.encode_words(["a b"]).tolist() == [[2, 0, 4, 3]]
    assert tokenizer.decode([2, 0, 4, 3]) == "a" and tokenizer.label(2) == "<start>"
    again = text.from_config(json.loads(json.dumps(tokenizer.get_config())))
    assert again.get_config() == tokenizer.get_config()


def test_an_over_long_word_is_cut():
    tokenizer = text.WordCharacterTokenizer(max_characters=6)
    assert tokenizer.spell_word("abcdefgh") == tokenizer.spell_word("abcdzzz") == [259, 98, 99, 100, 101, 260]
    assert text.WordCharacterTokenizer().spell_word("x" * 60) == [259, *[121] * 48, 260]
    # A cut may fall into the middle of a character: bytes are what is counted.
    assert tokenizer.spell_word("abcé")[-2:] == [196, 260]


def test_training_a_tokenizer():
    tokenizer = text.train("word_characters", ["b a b", "c b"], vocab_size=6, max_characters=9)
    assert tokenizer.words == ["b", "a"] and tokenizer.max_characters == 9


MISTAKES = [
    (lambda t: t.encode_characters([["a", ""]]), InputError, "A word is at least one character, and none of them white space. Received: ''"),
    (lambda t: t.encode_characters([["a b"]]), InputError, "A word is at least one character, and none of them white space. Received: 'a b'"),
    (lambda t: t.encode_characters([""]), InputError, "A sentence needs at least one word. Received: ''"),
    (lambda t: t.encode_characters(["a", []]), InputError, "A sentence needs at least one word. Received: []"),
    (lambda t: t.encode_words("a b"), InputError, "Sentences are a list, even where there is one. Received: 'a b'"),
    (lambda t: text.WordCharacterTokenizer(["a"], ("pad",)).encode("b"), InputError, "The tokenizer has no word 'b'; it knows 1 words. Make it with special_tokens=('unknown',) to accept others. Received: 'b'"),
    (lambda t: text.WordCharacterTokenizer(["a"], ("pad",)).encode_words(["a"]), InputError, "Boundaries need the special tokens start and end. Received: special_tokens=('pad',), boundaries=True"),
    (lambda t: text.WordCharacterTokenizer(["a b"]), ConfigError, "Each of `words` must be free of white space. Received: 'a b'"),
    (lambda t: text.WordCharacterTokenizer(max_characters=2), ConfigError, "`max_characters` must be at least 3: a byte between two marks. Received: max_characters=2"),
]  # fmt: skip


@pytest.mark.parametrize("make, kind, message", MISTAKES, ids=[m[:40] for _, _, m in MISTAKES])
def test_mistakes_with_words(make, kind, message):
    with pytest.raises(kind) as caught:
        make(text.WordCharacterTokenizer(["a"]))
    assert str(caught.value) == message
