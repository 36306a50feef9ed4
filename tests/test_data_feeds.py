"""Feeds: the batch of a step, shards, every row once, epochs; for every task, and for what does not fit into memory."""

import itertools
import json

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kerastf
from kerastf import data, text
from kerastf.data.batching import Batches, Stream
from kerastf.data.large import Documents, LargeBatches, LargeText
from kerastf.errors import InputError

SQUAD = [
    {"question": f"who has number {n}?", "context": f"the cat has {n} and the dog has {n + 1}.",
     "answers": [{"text": "the cat", "answer_start": 0}]} for n in range(40)
]  # fmt: skip
SIZES = {"batch_size": 8, "seed": 3}
CASES = {
    "language": ("embedded:corpus", {"length": 16, "size": 9000, "tokenizer": "characters"}),
    "masked": ("embedded:stories", {"length": 32, "count": 60, "tokenizer": "word"}),
    "masked_pairs": ("embedded:stories", {"length": 32, "count": 60, "tokenizer": "word"}),
    "classification": ("embedded:sentiment", {"length": 24, "count": 100, "tokenizer": "word"}),
    "tagging": ("embedded:tagged_sentences", {"length": 24, "count": 100, "tokenizer": "word"}),
    "translation": ("embedded:dates", {"length": 48, "count": 100, "tokenizer": "characters"}),
    "span": (SQUAD, {"length": 32, "stride": 8, "tokenizer": "word"}),
    "bidirectional": ("embedded:analogies", {"length": 12, "count": 100}),
    "word_vectors": ("embedded:analogies", {"length": 8, "window": 2, "count": 200}),
    "images": ("embedded:shapes", {"count": 80, "size": 16, "shift": 1, "flip": True}),
}


@pytest.fixture(scope="module")
def load():
    """Each task loaded once."""
    known = {}

    def found(task, **more):
        key = (task, tuple(more.items()))
        if key not in known:
            source, options = CASES[task]
            known[key] = data.load(source, task=task, **{**SIZES, **options, **more})
        return known[key]

    return found


def take(dataset, count):
    return list(itertools.islice(dataset.as_numpy_iterator(), count))


def equal(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        keras.tree.assert_same_structure(a, b)
        for x, y in zip(keras.tree.flatten(a), keras.tree.flatten(b), strict=True):
            assert x.dtype == y.dtype and np.array_equal(x, y)


def rows(batches):
    """The rows of batches as strings that can be sorted."""
    found = []
    for batch in batches:
        leaves = keras.tree.flatten(batch)
        found += [json.dumps([leaf[i].tolist() for leaf in leaves]) for i in range(len(leaves[0]))]
    return found


@pytest.mark.parametrize("task", CASES)
def test_a_batch_is_a_function_of_its_step(task, load):
    feed = load(task).train
    steps = feed.steps
    whole = take(feed.dataset(), 2 * steps + 3)  # more than two epochs
    equal(take(feed.dataset(start=steps + 1), 2), whole[steps + 1 : steps + 3])
    for start in (0, 1, steps - 1, steps, 2 * steps + 1):
        equal(list(itertools.islice(feed.batches.run(start), 2)), whole[start : start + 2])
    source, options = CASES[task]
    again = data.load(source, task=task, **{**SIZES, **options}).train
    equal([again.batches.at(steps + 1)], [whole[steps + 1]])
    other = data.load(source, task=task, **{**SIZES, **options, "seed": 4}).train
    assert rows([other.batches.at(0)]) != rows(whole[:1])


@pytest.mark.parametrize("task", CASES)
def test_shards_put_together_are_the_batch(task, load):
    feed = load(task).train
    whole = take(feed.dataset(start=2), 2)
    parts = [take(feed.dataset(start=2, shard=(i, 2)), 2) for i in range(2)]
    equal([keras.tree.map_structure(lambda *p: np.concatenate(p), *batch) for batch in zip(*parts, strict=True)], whole)
    assert {len(keras.tree.flatten(b)[0]) for p in parts for b in p} == {4}


@pytest.mark.parametrize("task", CASES)
def test_every_row_once_in_order(task, load):
    feed = load(task).valid
    made = take(feed.once(), 10**6)
    equal(list(feed.batches.once()), made)
    sizes = [len(keras.tree.flatten(b)[0]) for b in made]
    assert all(n == 8 for n in sizes[:-1]) and 1 <= sizes[-1] <= 8
    if hasattr(feed.batches, "rows"):
        assert sum(sizes) == len(feed.batches.rows)
    parts = [[feed.cut(batch, (i, 2)) for batch in made] for i in range(2)]
    equal([keras.tree.map_structure(lambda *p: np.concatenate(p), *b) for b in zip(*parts, strict=True)], made)


@pytest.mark.parametrize("task", ["classification", "tagging", "span", "bidirectional"])
def test_an_epoch_has_the_rows_of_one_pass(task, load):
    feed = load(task).train
    once = rows(feed.batches.once())
    for epoch in range(2):
        seen = rows(itertools.islice(feed.batches.run(epoch * feed.steps), feed.steps))
        left = list(once)
        for row in seen:
            left.remove(row)
        assert len(left) == len(once) - 8 * feed.steps < 8 and seen != once[: len(seen)]


def test_windows_are_cut_at_random_places():
    """In training each window is a piece of the text, and hardly ever one that `once` gives."""
    made = data.corpus(3000)
    found = data.load([{"text": made}], task="language", length=12, batch_size=8, tokenizer="character", valid=0.0)
    plain = rows(found.train.batches.once())
    seen = rows(itertools.islice(found.train.batches.run(0), 20))
    texts = [
        found.tokenizer.decode([*np.asarray(x).tolist(), int(np.asarray(y)[-1])])
        for x, y in batch_rows(found.train, 20)
    ]
    assert all(text in made for text in texts)
    assert sum(row in plain for row in seen) < len(seen) / 3


def batch_rows(feed, count):
    for x, y in itertools.islice(feed.batches.run(0), count):
        yield from zip(x, y, strict=True)


@pytest.mark.parametrize("task", CASES)
def test_what_a_feed_says_of_itself(task, load):
    feed = load(task).train
    batch = feed.batches.at(3)
    for array, spec in zip(keras.tree.flatten(batch), keras.tree.flatten(feed.element_spec), strict=True):
        assert spec.dtype == array.dtype and spec.shape.is_compatible_with(array.shape) and spec.shape[0] == 8
    assert feed.unit == {"images": "images", "translation": "pairs"}.get(task, "tokens")
    length = 1 if task in ("images", "translation") else CASES[task][1]["length"]
    assert feed.units == 8 * length and feed.batch_size == 8


def test_static_shapes(load):
    loose, static = load("translation").train, load("translation", static=True).train
    assert not loose.element_spec[1].shape.is_fully_defined()
    assert static.element_spec[1].shape.as_list() == static.element_spec[0]["source"].shape.as_list() == [8, 48]
    equal(take(static.dataset(start=3), 2), take(static.dataset(), 5)[3:])


def test_images_to_look_at_are_as_they_are(load):
    found = load("images")
    images, facts = data.shapes(80, size=16, seed=3)
    once = take(found.valid.once(), 9)
    x, y = (np.concatenate(side) for side in zip(*once, strict=True))
    where = [next(i for i in range(80) if np.array_equal(images[i], image)) for image in x]
    assert [facts[i]["shape"] for i in where] == [found.classes[n] for n in y]
    plain = {i.tobytes() for i in images}
    moved, _ = take(found.train.dataset(), 1)[0]
    assert not {m.tobytes() for m in moved} <= plain


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 40), size=st.integers(1, 9), seed=st.integers(0, 4), shuffle=st.booleans())
def test_batches_hold_each_row_once_an_epoch(count, size, seed, shuffle):
    batches = Batches(range(count), lambda r, _: np.array(r), batch_size=size, shuffle=shuffle, seed=seed)
    for epoch in range(2):
        assert sorted(np.concatenate(list(batches.epoch(epoch)))) == list(range(count))
    step = len(batches) + len(batches) // 2
    assert np.array_equal(batches.at(step), next(batches.run(step)))
    assert np.concatenate(list(batches.once())).tolist() == list(range(count))


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 40), size=st.integers(1, 9), block=st.integers(1, 12), start=st.integers(0, 12))
def test_a_stream_skips_to_a_step(count, size, block, start):
    def blocks():
        return (list(range(at, min(at + block, count))) for at in range(0, count, block))

    stream = Stream(blocks, lambda r, g: np.array([*r, g.integers(1000)]), batch_size=size)
    whole = list(itertools.islice(stream.run(), start + 3))
    for a, b in zip(itertools.islice(stream.run(start), 3), whole[start:], strict=True):
        assert np.array_equal(a, b)


def test_other_backends_get_the_same_batches(load, monkeypatch):
    feed = load("masked").train
    want, once = take(feed.dataset(start=5), 2), take(feed.once(), 10**6)
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    made = feed.dataset(start=5)
    assert isinstance(made, keras.utils.PyDataset) and made.num_batches is None
    equal([made[0], made[1]], want)
    finite = feed.once()
    equal([finite[i] for i in range(len(finite))], once)


def test_a_model_takes_what_was_found(load):
    found = load("language")
    sizes = {"max_length": 16, "dim": 8, "num_layers": 1, "num_heads": 2}
    model = kerastf.create_model("gpt", **found.options, **sizes)
    model.compile("adam")
    model.fit(found.train.dataset(), steps_per_epoch=1, epochs=1, verbose=0, shuffle=False)
    assert np.isfinite(model.evaluate(found.valid.once(), verbose=0, return_dict=True)["loss"])


# --- larger than memory

CORPUS = data.corpus(60_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("large")
    (where / "a.txt").write_text(CORPUS)
    lines = [{"id": i, "text": line + " é€😀" * (i % 3)} for i, line in enumerate(CORPUS.splitlines())]
    (where / "a.jsonl").write_text("\n".join(json.dumps(line, ensure_ascii=i % 2 == 0) for i, line in enumerate(lines)))
    return where


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("tokenizer", ["characters", "word"])
def test_a_large_file_is_read_at_random_places(folder, name, tokenizer):
    found = data.load(
        folder / name, task="language", length=20, tokenizer=tokenizer, stream_above=1000, sample=8000, **SIZES
    )
    feed = found.train
    assert isinstance(feed.batches, LargeBatches) and feed.steps is None
    whole = take(feed.dataset(), 6)
    equal(take(feed.dataset(start=4), 2), whole[4:])
    x, y = whole[0]
    assert x.shape == y.shape == (8, 20) and np.array_equal(x[:, 1:], y[:, :-1])
    parts = [take(feed.dataset(start=1, shard=(i, 2)), 1)[0][0] for i in range(2)]
    assert np.array_equal(np.concatenate(parts), whole[1][0])
    if (name, tokenizer) == ("a.txt", "characters"):
        cut = len(CORPUS) - round(len(CORPUS) * 0.1)
        for row in np.concatenate([b[0] for b in whole]):  # what is held out is never seen
            assert found.tokenizer.decode(row) in CORPUS[: cut + 80] or found.tokenizer.end_id in row
        seen = "".join(found.tokenizer.decode(r) for b in take(feed.once(), 10**6) for r in b[0])
        held = "".join(found.tokenizer.decode(r) for b in take(found.valid.once(), 10**6) for r in b[0])
        assert CORPUS.startswith(seen) and len(seen) > 0.89 * len(CORPUS) - 20
        assert held in CORPUS and len(held) > 0.1 * len(CORPUS) - 150


def test_random_places_cover_a_large_file(tmp_path):
    whole = "".join(f"line {n * 7919 % 10_007:05}\n" for n in range(5000))  # no two lines are the same
    (tmp_path / "a.txt").write_text(whole)
    tokenizer = text.CharacterTokenizer.from_text(whole)
    options = {"length": 30, "stride": 30, "batch_size": 64, "seed": 0}
    batches = LargeBatches(LargeText([tmp_path / "a.txt"]), tokenizer, lambda w, _: w, **options)
    starts = [whole.find(tokenizer.decode(row)) for step in range(20) for row in batches.at(step)]
    assert len(set(starts)) > 1000 and starts.count(-1) <= 3  # near the end a window goes on at the beginning
    assert all(at % 11 == 0 for at in starts if at >= 0)
    assert np.histogram(starts, bins=10, range=(0, len(whole)))[0].min() > 90


@settings(max_examples=60, deadline=None)
@given(
    document=st.text(alphabet="ab \né€😀", min_size=1, max_size=300).filter(lambda t: t.strip()),
    place=st.floats(0, 0.999), size=st.integers(1, 40),
)  # fmt: skip
def test_a_large_text_is_its_characters(document, place, size, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "large.txt"
    path.write_text(document, newline="")
    source = LargeText([path])
    assert "".join(p or "" for p in source.texts(0, size, again=False)) == document
    at = source.align(int(place * len(source)))
    tail = "".join(p or "" for p in source.texts(at, size, again=False))
    assert document.endswith(tail) and len(tail.encode()) == len(source) - at
    assert "".join(source.sample(10**6)) == document


def test_several_large_files_are_one_text(tmp_path):
    for name, letter in (("a.txt", "a"), ("b.txt", "b")):
        (tmp_path / name).write_text(f"{letter * 9}\n" * 200)
    found = data.load(tmp_path, task="language", length=15, tokenizer="characters", stream_above=100, valid=0, **SIZES)
    seen = "".join(found.tokenizer.label(n) for b in take(found.train.once(), 10**6) for row in b[0] for n in row)
    assert seen.count("<end>") in (1, 2) and 1950 < seen.index("<end>") <= 2000
    masked = data.load(tmp_path, task="masked", length=15, tokenizer="word", stream_above=100, valid=0, **SIZES)
    x, _ = take(masked.train.dataset(start=9), 1)[0]
    assert x["tokens"].shape == (8, 15) and (x["tokens"][:, 0] == masked.tokenizer.class_id).all()


def test_a_large_file_may_begin_with_a_byte_order_mark(tmp_path):
    lines = "".join(json.dumps({"text": f"text {n}"}) + "\r\n" for n in range(40))
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    assert [t for t in LargeText([tmp_path / "a.jsonl"], "text").texts(0, again=False) if t] == [
        f"text {n}" for n in range(40)
    ]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("sizes", [(900, 100, 30), (50, 900), (9, 9), (10, 20_000)])
def test_something_is_left_to_train_on(tmp_path, name, sizes):
    path, key = tmp_path / name, "text" if name.endswith("l") else None
    found = ["é" * size for size in sizes]
    path.write_text("".join((json.dumps({"text": t}, ensure_ascii=False) if key else t) + "\n" for t in found), "utf-8")
    for fraction in (1e-9, 0.1, 0.5, 0.99):
        known, held = LargeText([path], key).hold_out(fraction)
        texts = ["".join(t for t in part.texts(part.first, again=False) if t) for part in (known, held)]
        assert all(t.strip() for t in texts) and "".join(texts).replace("\n", "") == "".join(found)


def test_one_line_is_cut_or_an_error(tmp_path):
    (tmp_path / "a.txt").write_text("é" * 100, "utf-8")
    known, held = LargeText([tmp_path / "a.txt"]).hold_out(0.255)
    assert ["".join(t for t in p.texts(p.first, again=False) if t) for p in (known, held)] == ["é" * 75, "é" * 25]
    known, held = LargeText([tmp_path / "a.txt"]).hold_out(1e-9)
    assert (len(known), len(held)) == (198, 2)
    (tmp_path / "a.jsonl").write_text('{"text": "abc"}')
    with pytest.raises(InputError) as told:
        LargeText([tmp_path / "a.jsonl"], "text").hold_out(0.1)
    assert str(told.value) == (
        "a.jsonl cannot be cut in two to hold out a part: give a part `valid`, or valid=0. Received: valid=0.1"
    )


def test_documents_by_number():
    records = [{"text": f"{chr(97 + n) * 5}"} for n in range(20)]
    tokenizer = text.CharacterTokenizer("abcdefghijklmnopqrst", ("end",))
    batches = LargeBatches(Documents(records), tokenizer, lambda w, _: w, length=9, stride=9, batch_size=4, seed=0)
    for row in batches.at(7):
        n = int(row[0])
        assert row.tolist() == [n] * 5 + [20] + [(n + 1) % 20] * 3
    known, held = Documents(records).hold_out(0.1)
    assert (known.first, known.last, held.first, held.last) == (0, 18, 18, 20)
    known, held = Documents(records[:2]).hold_out(0.9)
    assert (known.last, held.first) == (1, 1)


MISTAKES = [
    (lambda f: f.dataset(start=-1), "`start` must be at least 0. Received: start=-1"),
    (lambda f: f.dataset(shard=(0, 3)), "Each of 3 workers has the same share of a batch, so their number must divide it. Received: shard=(0, 3), batch_size=8"),
    (lambda f: f.dataset(shard=(2, 2)), "`shard` is the number of a worker and how many there are. Received: shard=(2, 2)"),
    (lambda f: f.once(shard=(0, 3)), "Each of 3 workers has the same share of a batch, so their number must divide it. Received: shard=(0, 3), batch_size=8"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes(number, load):
    act, message = MISTAKES[number]
    with pytest.raises(InputError) as told:
        act(load("classification").train)
    assert str(told.value) == message
