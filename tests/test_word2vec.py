"""Word2vec: losses and updates against NumPy, the statistics of windows and draws, planted analogies, bad input."""

import math
import tracemalloc

import keras
import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf import compat, data, functional, text, vectors
from kerastf.blocks.sampling import alias_table
from kerastf.errors import ConfigError, FileFormatError, InputError
from kerastf.testing import check_model
from kerastf.testing.subjects import shake

COUNTS = [40, 20, 10, 5, 5, 2, 2, 1, 1]
TINY = {"vocab_size": 9, "dim": 4, "counts": COUNTS}


def numpy(x):
    return ops.convert_to_numpy(x)


def softplus(x):
    return math.log1p(math.exp(-abs(x))) + max(x, 0)


def rows(seed=0, batch=3, length=5, window=2):
    """Random rows with their windows."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 9, (batch, length + 2 * window)).astype("int32")
    return tokens, rng.integers(0, window + 1, (batch, length, 2)).astype("int32")


def numpy_window_loss(model, tokens, reach, drawn):
    """One pair after the other."""
    u, v = numpy(model.embedding.matrix).astype("float64"), numpy(model.head.matrix).astype("float64")
    span, total, pairs, full = (tokens.shape[1] - reach.shape[1]) // 2, 0.0, 0, 0
    for row in range(len(tokens)):
        for t in range(reach.shape[1]):
            at = t + span
            left, right = reach[row, t]
            around = [tokens[row, n] for n in range(at - left, at + right + 1) if n != at]
            full += bool(around)
            if model.options["mode"] == "cbow":
                asked = [(np.mean([u[w] for w in around], axis=0), tokens[row, at])] if around else []
            else:
                asked = [(u[tokens[row, at]], w) for w in around]
            for x, label in asked:
                pairs += 1
                total += softplus(-x @ v[label])
                total += sum(softplus(x @ v[n]) for n in drawn[row]) * model.head.negatives / drawn.shape[1]
    return total / pairs * full / reach[..., 0].size


@pytest.mark.parametrize("mode", ["skip_gram", "cbow"])
def test_the_loss_of_windows_equals_numpy(mode, monkeypatch):
    model = kerastf.create_model("word2vec", **TINY, mode=mode)
    shake(model, 1)
    tokens, reach = rows()
    drawn = np.random.default_rng(5).integers(0, 9, (3, 5)).astype("int32")
    monkeypatch.setattr(model.head, "draw", lambda shape: ops.convert_to_tensor(drawn))
    model.compile(run_eagerly=True, steps_per_execution=1)
    want = numpy_window_loss(model, tokens, reach, drawn)
    assert float(model.compute_loss(ops.convert_to_tensor(tokens), ops.convert_to_tensor(reach))) == pytest.approx(want)


@pytest.mark.parametrize("mode", ["skip_gram", "cbow"])
@pytest.mark.parametrize(
    "setting", [{}, {"initial_accumulator_value": 0.01, "epsilon": 0.02}], ids=["its own", "other"]
)
def test_the_fast_update_is_adagrad(mode, setting, monkeypatch):
    """On TensorFlow: weights and accumulators after three steps, against dense gradients of the slow loss."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip("the fast step is TensorFlow's")
    keras.utils.set_random_seed(0)
    model = kerastf.create_model("word2vec", **TINY, mode=mode)
    shake(model, 1)
    drawn = np.random.default_rng(5).integers(0, 9, (3, 5)).astype("int32")
    monkeypatch.setattr(model.head, "draw", lambda shape: ops.convert_to_tensor(drawn))
    given = {"optimizer": keras.optimizers.Adagrad(0.1, **setting)} if setting else {}
    model.compile(**given, run_eagerly=True, steps_per_execution=1)
    model.optimizer.build(model.trainable_variables)
    assert model._updates_rows()
    first, epsilon = setting.get("initial_accumulator_value", 0.0), setting.get("epsilon", 1e-16)
    squares = [first, first]
    for n in range(3):
        tokens, reach = (ops.convert_to_tensor(a) for a in rows(n))
        weights = [numpy(v) for v in model.trainable_variables]
        slopes = compat.gradients(lambda x=tokens, y=reach: model.compute_loss(x, y), model.trainable_variables)
        model.train_on_batch(*rows(n))
        squares = [s + g**2 for s, g in zip(squares, slopes, strict=True)]
        for variable, w, s, g in zip(model.trainable_variables, weights, squares, slopes, strict=True):
            np.testing.assert_allclose(numpy(variable), w - 0.1 * g / np.sqrt(s + epsilon), atol=1e-5)
    for kept, s in zip(model.optimizer.variables[2:], squares, strict=True):
        np.testing.assert_allclose(numpy(kept), s, rtol=1e-3, atol=1e-8)
    assert int(model.optimizer.iterations) == 3


def test_the_full_softmax_of_windows_equals_pairs():
    model = kerastf.create_model("word2vec", vocab_size=9, dim=4, head="language_model")
    shake(model, 1)
    model.compile()
    tokens, reach = rows()
    near = numpy(functional.near(ops.convert_to_tensor(reach), 2))
    pairs = [(tokens[b, t + 2], tokens[b, s]) for b, t, s in zip(*np.nonzero(near), strict=True)]
    centres, others = np.array(pairs, "int32").T
    want = model.evaluate(centres[:, None], others[:, None], batch_size=len(pairs), verbose=0)
    share = np.mean(reach.sum(-1) > 0)
    got = model.compute_loss(ops.convert_to_tensor(tokens), ops.convert_to_tensor(reach))
    assert float(got) == pytest.approx(want * share, rel=1e-5)


def test_the_loss_of_pairs_is_the_mean_over_draws():
    model = kerastf.create_model("word2vec", **TINY)
    shake(model, 1)
    model.compile()
    scores, noise = numpy(model(np.array([[3]])))[0, 0], np.array(COUNTS) ** 0.75
    noise = noise / noise.sum()
    want = softplus(-scores[7]) + 5 * sum(p * softplus(s) for p, s in zip(noise, scores, strict=True))
    assert model.evaluate(np.array([[3]]), np.array([[7]]), verbose=0) == pytest.approx(want, rel=1e-5)


def test_the_start_is_word2vecs():
    model = kerastf.create_model("word2vec", vocab_size=2000, dim=10, counts=[1] * 2000)
    u = model.vectors
    assert np.abs(u).max() <= 0.05 and np.abs(u).max() > 0.049
    assert abs(u.mean()) < 1e-3 and u.std() == pytest.approx(0.05 / 3**0.5, rel=0.02)
    assert not numpy(model.head.matrix).any()


def test_draws_follow_the_counts_to_the_three_quarters():
    keras.utils.set_random_seed(3)
    head = kerastf.create_block("head", "negative_sampling", vocab_size=11, counts=COUNTS, seed=7)
    drawn = numpy(head.draw((400, 500))).ravel()
    found = np.bincount(drawn, minlength=11)
    want = np.array([*COUNTS, 0, 0]) ** 0.75
    want = want / want.sum() * len(drawn)
    assert not found[9:].any()
    chi = float(np.sum((found[:9] - want[:9]) ** 2 / want[:9]))
    assert chi < 26.1  # 8 degrees of freedom, one in a thousand


def test_the_alias_table_is_exact():
    p = np.random.default_rng(0).dirichlet(np.full(50, 0.3))
    chances, aliases = alias_table(p)
    back = np.zeros(50)
    for i in range(50):
        back[i] += chances[i] / 50
        back[aliases[i]] += (1 - chances[i]) / 50
    np.testing.assert_allclose(back, p, atol=1e-8)


# --- windows


def drawn_windows(texts, tokenizer, **options):
    found = [(x.numpy(), y.numpy()) for x, y in data.windows(texts, tokenizer, **options)]
    return [np.concatenate(side) for side in zip(*found, strict=True)]


def test_subsampling_keeps_words_with_word2vecs_probability():
    rng = np.random.default_rng(0)
    texts = [
        " ".join(rng.choice(list("abcdefgh"), p=np.array([64, 32, 16, 8, 4, 2, 1, 1]) / 128, size=50))
        for _ in range(2000)
    ]
    tokenizer = text.train("word", texts, special_tokens=())
    counts = np.array(tokenizer.counts)
    tokens, reach = drawn_windows(texts, tokenizer, window=2, subsample=0.02, batch_size=8)
    centres = tokens[:, 2:-2][reach.sum(-1) > 0]
    kept = np.bincount(centres, minlength=8)
    share = counts / counts.sum()
    p = np.minimum(1, np.sqrt(0.02 / share) + 0.02 / share)
    np.testing.assert_allclose(data.keep_probabilities(counts, 0.02), p, rtol=1e-6)
    assert np.all(np.abs(kept - counts * p) <= 4 * np.sqrt(counts * p * (1 - p)) + 20)  # some lines keep one word only


def test_windows_are_those_of_a_slow_loop():
    """Every pair within reach and within its text, each word a centre once, nothing across texts."""
    texts = ["a b c d e f g", "h", "b a", "", "c " * 30]
    tokenizer = text.train("word", texts, special_tokens=("unknown",))
    tokens, reach = drawn_windows(
        [*texts, "zzz a zzz h"], tokenizer, window=3, subsample=0, batch_size=2, length=4, shuffle=False
    )
    stream, around = tokens[:, 3:-3].ravel(), reach.reshape(-1, 2)
    lines = [tokenizer.encode_known(t) for t in [*texts, "a h"]]
    assert stream[: sum(map(len, lines))].tolist() == [n for line in lines for n in line]
    at = 0
    for line in lines:
        for i in range(len(line)):
            left, right = around[at]
            assert left <= min(3, i) and right <= min(3, len(line) - 1 - i)
            assert left == i or right == len(line) - 1 - i or left == right  # one reach, cut at the ends
            at += 1
    assert not around[at:].any()
    for row, (whole, own) in enumerate(zip(tokens, reach, strict=True)):
        for t in range(4):  # the words beside a centre are those of the stream
            for n in range(-own[t, 0], own[t, 1] + 1):
                assert whole[t + 3 + n] == stream[row * 4 + t + n]


def test_reaches_are_even():
    line = " ".join(["a", "b"] * 5000)
    tokenizer = text.train("word", [line], special_tokens=())
    _, reach = drawn_windows([line] * 3, tokenizer, window=5, subsample=0, batch_size=4)
    inner = reach[(reach[..., 0] == reach[..., 1]) & (reach[..., 0] > 0)][:, 0]
    found = np.bincount(inner, minlength=6)[1:]
    assert np.sum((found - len(inner) / 5) ** 2 / (len(inner) / 5)) < 18.5  # 4 degrees of freedom


def test_a_seed_reproduces_the_stream_and_epochs_differ():
    sentences, _ = data.analogies(200)
    tokenizer = text.train("word", sentences, special_tokens=())
    first = data.windows(sentences, tokenizer, batch_size=4, seed=3)
    epochs = [[y.numpy() for _, y in first] for _ in range(2)]
    again = [y.numpy() for _, y in data.windows(sentences, tokenizer, batch_size=4, seed=3)]
    later = [y.numpy() for _, y in data.windows(sentences, tokenizer, batch_size=4, seed=3, first_epoch=1)]
    assert all(np.array_equal(a, b) for a, b in zip(epochs[0], again, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(epochs[1], later, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(*epochs, strict=True))
    assert len(epochs[0]) == int(first.cardinality())


def test_memory_does_not_grow_with_the_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr("kerastf.data.neighbours.CHUNK", 2**12)
    peaks = []
    for count in (2_500, 15_000):
        path = tmp_path / f"{count}.txt"
        path.write_text("\n".join(data.analogies(count)[0]))
        tracemalloc.start()
        tokenizer = text.train("word", path, special_tokens=())
        for _ in data.windows(path, tokenizer, batch_size=16).take(10**9):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        path.unlink()
    assert peaks[1] < 1.5 * peaks[0] + 2**20, peaks


# --- training and words


def planted(seed, mode="skip_gram", epochs=12):
    """The share of planted analogies that are found, and the model."""
    keras.utils.set_random_seed(seed)
    sentences, questions = data.analogies(3000, seed=seed)
    tokenizer = text.train("word", sentences, special_tokens=())
    model = kerastf.create_model("word2vec", tokenizer=tokenizer, dim=32, mode=mode)
    model.compile()
    model.fit(data.windows(sentences, tokenizer, subsample=0, batch_size=16, seed=seed), epochs=epochs, verbose=0)
    numbers = np.array([[tokenizer.numbers[w] for w in q] for q in questions])
    return np.mean(vectors.answer(vectors.normalised(model.vectors), numbers[:, :3]) == numbers[:, 3]), model


@pytest.fixture(scope="module")
def trained():
    return planted(0)


def test_planted_analogies_are_found(trained):
    assert trained[0] >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["skip_gram", "cbow"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_planted_analogies_are_found_with_every_seed(seed, mode):
    assert planted(seed, mode, epochs=30)[0] >= 0.95


def test_words(trained, tmp_path):
    _, model = trained
    assert model.analogy("france", "paris", "norway")[0][0] == "oslo"
    assert len(model.analogy("france", "paris", "norway", k=4)) == 4
    found = model.nearest("paris", k=5)
    unit = vectors.normalised(model.vectors)
    order = np.argsort(-unit @ unit[model.tokenizer.numbers["paris"]])
    assert [w for w, _ in found] == [model.tokenizer.words[n] for n in order[1:6]]
    assert found[0][1] == pytest.approx(model.similarity("paris", found[0][0]), abs=1e-5)
    assert model.nearest(model.vector("paris"), k=1)[0][0] == "paris"
    assert len(model.nearest("paris", k=10**6)) == model.tokenizer.ordinary - 1
    path = tmp_path / "questions.txt"
    path.write_text(
        ": capitals\nfrance paris norway oslo\nfrance paris atlantis poseidonis\n: other\nparis french oslo thai\n"
    )
    found = model.evaluate_analogies(path)
    assert found["sections"]["capitals"] == {"accuracy": 1.0, "right": 1, "asked": 1, "skipped": 1}
    assert (found["right"], found["asked"], found["skipped"]) == (1, 2, 1)
    assert model.evaluate_analogies(path, restrict=1)["asked"] == 0


def test_saved_and_loaded(trained, tmp_path):
    _, model = trained
    model.save(tmp_path / "model.keras")
    loaded = kerastf.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.vectors, model.vectors)
    assert loaded.nearest("paris") == model.nearest("paris")
    assert loaded.tokenizer.counts == model.tokenizer.counts
    for a, b in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(numpy(a), numpy(b))
    loaded.fit(data.windows(["the army guards france and its cheese"], loaded.tokenizer, batch_size=2), verbose=0)


@pytest.mark.parametrize("binary", [False, True])
def test_the_exported_file(trained, tmp_path, binary):
    _, model = trained
    model.save_word2vec(tmp_path / "words", binary=binary)
    raw = (tmp_path / "words").read_bytes()
    head, rest = raw.split(b"\n", 1)
    assert head == f"{model.tokenizer.ordinary} 32".encode()
    word, rest = rest.split(b" ", 1)
    first = np.frombuffer(rest[:128], "<f4") if binary else np.array(rest.split(b"\n")[0].split(), "f4")
    np.testing.assert_array_equal(first, model.vector(word.decode()))


def test_model_contract_of_the_bag_of_words():
    check_model("word2vec", mode="cbow", only=["config", "shapes", "gradients", "length", "batch", "padding", "fit"])
    check_model("word2vec", head="language_model", only=["config", "gradients", "fit"])


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_any_keras_optimizer_trains_from_windows(optimizer):
    sentences, _ = data.analogies(100)
    tokenizer = text.train("word", sentences, special_tokens=())
    model = kerastf.create_model("word2vec", tokenizer=tokenizer, dim=8)
    model.compile(optimizer)
    assert not model._updates_rows()
    history = model.fit(data.windows(sentences, tokenizer, batch_size=4), epochs=2, verbose=0).history["loss"]
    assert np.isfinite(history).all() and history[1] < history[0]


# --- bad input


def test_bad_input(trained, tmp_path):
    _, model = trained
    with pytest.raises(InputError, match="The model has no word 'francee' among its 113. Did you mean `france`"):
        model.nearest("francee")
    with pytest.raises(InputError, match="`k` must be at least 1. Received: k=0"):
        model.nearest("paris", k=0)
    with pytest.raises(InputError, match="a word is its number in \\[0, 9\\). Received: word='paris'"):
        kerastf.create_model("word2vec", **TINY).vector("paris")
    with pytest.raises(InputError, match="The corpus has no word of the tokenizer's vocabulary"):
        data.windows([], model.tokenizer)
    with pytest.raises(InputError, match="The corpus has no word of the tokenizer's vocabulary"):
        data.windows(["zzz"], model.tokenizer)
    with pytest.raises(InputError, match="`window` must be at least 1. Received: window=0"):
        data.windows(["paris"], model.tokenizer, window=0)
    with pytest.raises(InputError, match="`subsample` must not be negative"):
        data.windows(["paris"], model.tokenizer, subsample=-1)
    with pytest.raises(ConfigError, match="`vocab_size` must be at least 2. Received: vocab_size=1"):
        kerastf.create_model("word2vec", tokenizer=text.train("word", ["a a a"], special_tokens=()))
    with pytest.raises(ConfigError, match="Negative sampling draws words by their `counts`"):
        kerastf.create_model("word2vec", vocab_size=9)
    with pytest.raises(ConfigError, match="`counts` are at most 9 numbers"):
        kerastf.create_model("word2vec", vocab_size=9, counts=[0] * 9)
    (tmp_path / "questions.txt").write_text("a b c\n")
    with pytest.raises(FileFormatError, match="line 1: a question has four words. Received: 'a b c'"):
        model.evaluate_analogies(tmp_path / "questions.txt")
    with pytest.raises(ConfigError, match="`counts` are as many as `words`"):
        text.WordTokenizer(["a", "b"], counts=[1])
    with pytest.raises(InputError, match="In this format a word has no space"):
        vectors.write_word2vec(tmp_path / "words", ["a b"], np.zeros((1, 2)))
