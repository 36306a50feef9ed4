"""Batches to pretrain encoders: packing, masking, next sentences, files."""

import gzip
import json

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import CLASS, LETTER, LETTERS, PAD, SEPARATOR

from kerastf import data, text
from kerastf.data import pretraining
from kerastf.data.masking import trim


# A vocabulary so large that a random token is hardly ever the one that stood there.
class Many(text.Tokenizer):
    def encode(self, line):
        return [int(n) for n in line.split()]


MANY = Many(100_000, text.BERT)


def within(count, total, share):
    """Whether a count is within three standard errors of its share."""
    return abs(count - share * total) <= 3 * (total * share * (1 - share)) ** 0.5


# --- special tokens and packing


def test_special_tokens_have_roles():
    tokenizer = text.train("wordpiece", ["the cat sat"], 60, text.BERT, learner="tokenizers", lowercase=True)
    n = tokenizer.ordinary
    found = (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.class_id, tokenizer.separator_id, tokenizer.mask_id)
    assert found == (n, n + 1, n + 2, n + 3, n + 4) and tokenizer.start_id is None
    assert tokenizer.label(tokenizer.mask_id) == "<mask>"
    assert text.from_config(json.loads(json.dumps(tokenizer.get_config()))).mask_id == tokenizer.mask_id


def test_packing_by_hand():
    tokens, segments = data.pack(["abc", "de"], LETTER, max_length=8)
    assert tokens.tolist() == [CLASS, 0, 1, 2, SEPARATOR, 3, 4, SEPARATOR] and tokens.dtype == np.int32
    assert segments.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    tokens, segments = data.pack("abc", LETTER, max_length=4)
    assert tokens.tolist() == [CLASS, 0, 1, SEPARATOR] and segments.tolist() == [0] * 4


@settings(max_examples=60, deadline=None)
@given(first=st.integers(0, 12), second=st.integers(0, 12), length=st.integers(0, 20))
def test_trimming_takes_from_the_longer(first, second, length):
    a, b = list(range(first)), list(range(second))
    while len(a) + len(b) > length:  # one by one, written differently
        (a if len(a) > len(b) else b).pop()
    assert trim(list(range(first)), list(range(second)), length) == (a, b)


def test_packing_is_that_of_keras_nlp():
    import keras_nlp

    packer = keras_nlp.layers.MultiSegmentPacker(
        sequence_length=9, start_value=CLASS, end_value=SEPARATOR, pad_value=PAD
    )
    for first, second in [("abc", "de"), ("abcdefgh", "xy"), ("ab", "qrstuvw"), ("abcdefg", "hijklmn")]:
        want = [np.array(a) for a in packer((LETTER.encode(first), LETTER.encode(second)))]
        tokens, segments = data.pack([first, second], LETTER, max_length=9)
        assert text.pad([tokens], PAD, 9)[0].tolist() == want[0].tolist()
        assert text.pad([segments], 0, 9)[0].tolist() == want[1].tolist()


# --- masking


def test_masking_statistics_over_a_million_tokens():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 100_000, (10_000, 128)).astype("int32")
    for i, length in enumerate(rng.integers(90, 129, 10_000)):
        tokens[i, length:] = MANY.pad_id
    tokens[:, 0], tokens[:, 40], tokens[::7, 50] = MANY.class_id, MANY.separator_id, MANY.unknown_id
    ordinary = tokens < 100_000
    assert ordinary.sum() >= 1_000_000
    masked, positions, labels = data.mask_tokens(tokens, MANY, np.random.default_rng(5))
    used = labels >= 0
    old, new = labels[used], np.take_along_axis(masked, positions, 1)[used]
    assert within(used.sum(), ordinary.sum(), 0.15)
    hidden, kept = new == MANY.mask_id, new == old
    assert within(hidden.sum(), len(new), 0.8)
    assert within(kept.sum(), len(new), 0.1)
    assert within((~hidden & ~kept).sum(), len(new), 0.1)
    # What is not ordinary was not chosen, and is not put in by chance.
    assert np.array_equal(masked[~ordinary], tokens[~ordinary])
    assert not ((new >= 100_000) & ~hidden).any()
    assert np.array_equal(np.take_along_axis(tokens, positions, 1)[used], old)
    # Nothing else has changed.
    again = masked.copy()
    row, slot = np.nonzero(used)
    again[row, positions[row, slot]] = old
    assert np.array_equal(again, tokens)
    # Every place is chosen as often as any other.
    share = np.bincount(positions[used], minlength=128)[1:40] / len(tokens)
    assert abs(share.mean() - 0.15) < 0.002 and share.std() < 0.006


def test_positions_are_in_order_and_once():
    _, positions, labels = data.mask_tokens(np.zeros((200, 40), int), LETTER, np.random.default_rng(0))
    assert positions.shape == labels.shape == (200, 6) and positions.dtype == labels.dtype == np.int32
    for row, label in zip(positions, labels, strict=True):
        kept = row[label >= 0]
        assert (np.diff(kept) > 0).all() and (row[label < 0] == 0).all()


def test_rows_of_special_tokens_only():
    tokens = np.full((3, 8), PAD)
    masked, positions, labels = data.mask_tokens(tokens, LETTER, np.random.default_rng(0))
    assert np.array_equal(masked, tokens) and (labels == -1).all() and (positions == 0).all()


def stream(dataset, epochs=1):
    return [
        [(x["tokens"].tolist(), x["masked_positions"].tolist(), y) for x, y in dataset.as_numpy_iterator()]
        for _ in range(epochs)
    ]


def flat(epochs):
    return json.dumps(epochs, default=lambda a: a.tolist())


TEXTS = ["".join(np.random.default_rng(i).choice(list(LETTERS), 30)) for i in range(40)]
DOCUMENTS = [[LETTERS[i % 26] * (3 + (i + j) % 5) for j in range(2 + i % 7)] for i in range(60)]


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_the_same_seed_gives_the_same_stream(kind):
    make, items = (data.masked_text, TEXTS) if kind == "text" else (data.sentence_pairs, DOCUMENTS)
    options = {"batch_size": 4, "max_length": 24}
    first = stream(make(items, LETTER, seed=3, **options), 3)
    assert flat(stream(make(items, LETTER, seed=3, **options), 3)) == flat(first)
    assert flat(first[0]) != flat(first[1]) != flat(first[2])
    assert flat(stream(make(items, LETTER, seed=3, first_epoch=2, **options))) == flat(first[2:])
    assert flat(stream(make(items, LETTER, seed=4, **options))) != flat(first[:1])


def test_another_epoch_masks_the_same_row_differently():
    dataset = data.masked_text(TEXTS[:4], LETTER, batch_size=4, max_length=32, join=False, shuffle=False)
    (first,), (second,) = stream(dataset, 2)
    assert first[1] != second[1]


def original(x, labels):
    tokens = x["tokens"].copy()
    row, slot = np.nonzero(labels >= 0)
    tokens[row, x["masked_positions"][row, slot]] = labels[row, slot]
    return tokens


@pytest.mark.parametrize("join", [True, False])
def test_masked_text_holds_the_text(join):
    dataset = data.masked_text(TEXTS, LETTER, batch_size=3, max_length=20, join=join, shuffle=False)
    rows = [row for x, y in dataset.as_numpy_iterator() for row in original(x, y)]
    assert all(r[0] == CLASS and (r == SEPARATOR).sum() >= 1 for r in rows)
    assert "".join(LETTER.decode(r) for r in rows) == "".join(TEXTS)
    full = sum((r != PAD).all() for r in rows)
    # Joined rows are full, but for a separator that would have stood at an end.
    assert (full >= len(rows) * 0.8) if join else (len(rows) == 80 and full == 40)
    assert int(dataset.cardinality()) == -(-len(rows) // 3)


def test_shapes_and_names():
    x, y = next(iter(data.masked_text(TEXTS, LETTER, batch_size=3, max_length=42, drop_remainder=True)))
    assert {k: v.shape.as_list() for k, v in x.items()} == {
        "tokens": [3, 42], "segments": [3, 42], "masked_positions": [3, 6],
    }  # fmt: skip
    assert y.shape.as_list() == [3, 6] and {str(v.dtype.name) for v in (*x.values(), y)} == {"int32"}
    x, y = next(iter(data.sentence_pairs(DOCUMENTS, LETTER, batch_size=3, max_length=23)))
    assert x["masked_positions"].shape.as_list() == y["masked_tokens"].shape.as_list() == [3, 3]
    assert y["next_sentence"].shape.as_list() == [3]


class Counted(list):
    """Numbers that count how many of them are copied."""

    copied = 0

    def __getitem__(self, key):
        found = super().__getitem__(key)
        if isinstance(key, slice):
            Counted.copied += len(found)
            return Counted(found)
        return found


@pytest.mark.parametrize("join", [True, False])
def test_one_long_line_is_not_copied_for_each_row(monkeypatch, join):
    monkeypatch.setattr(Counted, "copied", 0)
    monkeypatch.setattr(MANY, "encode", lambda line: Counted(range(10_000)), raising=False)
    rows = list(pretraining.text_rows(["one line"], MANY, 10, join))
    assert np.array_equal(np.concatenate(rows), np.arange(10_000)) and {len(r) for r in rows} == {10}
    assert Counted.copied <= 20_000


# --- next sentences


def numbered_documents(count, rng):
    """Sentence s of document d is the number 100 d + s, some times over."""
    return [
        [" ".join([str(100 * d + s)] * int(rng.integers(2, 9))) for s in range(int(rng.integers(2, 12)))]
        for d in range(count)
    ]


def test_half_of_the_pairs_are_real_and_the_others_from_another_document():
    documents = numbered_documents(900, np.random.default_rng(1))
    dataset = data.sentence_pairs(documents, MANY, batch_size=64, max_length=48)
    real = total = ordinary = chosen = 0
    lengths = {0: [], 1: []}
    for _ in range(3):
        for x, y in dataset.as_numpy_iterator():
            for row, segments, label in zip(
                original(x, y["masked_tokens"]), x["segments"], y["next_sentence"], strict=True
            ):
                kept = row < 100_000
                first, second = row[kept & (segments == 0)], row[kept & (segments == 1)]
                assert (row == MANY.separator_id).sum() == 2 and row[0] == MANY.class_id
                assert len(set(first // 100)) == 1
                if label:
                    assert {first[0] // 100} == set(second // 100)
                    assert second[0] == first[-1] + 1 or len(first) + len(second) == 45  # cut at the end of the first
                else:
                    assert first[0] // 100 not in second // 100
                for part in (first, *(second[second // 100 == d] for d in set(second // 100))):
                    assert set(np.diff(np.unique(part))) <= {1}
                lengths[int(label)].append(len(second))
            real, total = real + y["next_sentence"].sum(), total + len(y["next_sentence"])
            ordinary += (original(x, y["masked_tokens"]) < 100_000).sum()
            chosen += (y["masked_tokens"] >= 0).sum()
    assert total > 2500 and within(real, total, 0.5) and within(chosen, ordinary, 0.15)
    a, b = (np.array(lengths[k]) for k in (0, 1))
    assert abs(a.mean() - b.mean()) < 4 * (a.var() / len(a) + b.var() / len(b)) ** 0.5 + 0.5  # length tells nothing


def test_the_length_of_a_segment_does_not_tell_whether_it_follows():
    rng = np.random.default_rng(0)
    short = [[" ".join(["7"] * int(rng.integers(1, 5)))] * int(rng.integers(1, 4)) for _ in range(60)]
    long = [[" ".join(["8"] * int(rng.integers(4, 12))) for _ in range(int(rng.integers(8, 20)))] for _ in range(60)]
    rows = pretraining.pair_rows(short + long, MANY, max_length=64)
    lengths = {0: [], 1: []}
    for row in rows * 30:
        _, second, real = pretraining.draw_pair(*row, rng)
        lengths[real].append(len(second))
    assert min(map(len, lengths.values())) > 2000
    assert abs(np.mean(lengths[0]) - np.mean(lengths[1])) < 0.03 * np.mean(lengths[1])


def test_of_two_documents_the_other_one_is_drawn():
    pool = [[np.full(3, 1)] * 8, [np.full(2, 2)]]
    for seed in range(20):
        _, second, real = pretraining.draw_pair(pool, 0, 0, 8, np.random.default_rng(seed))
        assert set(second) == ({1} if real else {2}) and len(second) >= 3 - (not real)


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=2, max_size=20), budget=st.integers(4, 30))
def test_chunks_leave_no_sentence_out(lengths, budget):
    chunks = list(pretraining._chunks([[0] * n for n in lengths], budget))
    assert all(last - first >= 2 for first, last in chunks)
    assert set().union(*(range(*c) for c in chunks)) == set(range(len(lengths)))
    for first, last in chunks:
        assert last - first == 2 or sum(lengths[first:last]) <= budget


# --- files


def test_a_file_is_never_read_whole(tmp_path, monkeypatch):
    lines = [LETTERS] * 5000
    (tmp_path / "a.txt").write_text("\n".join(lines))
    read = []
    genuine = text.read_lines

    def counted(path):
        for line in genuine(path):
            read.append(line)
            yield line

    monkeypatch.setattr(text, "read_lines", counted)
    iterator = iter(data.masked_text(tmp_path / "a.txt", LETTER, batch_size=4, max_length=30, buffer=20))
    before = len(read)  # to know the shapes, the first batch was made once
    next(iterator)
    assert before < 60 and len(read) < 300
    assert sum(1 for _ in iterator) > 1000 and len(read) > 5000


@pytest.mark.parametrize("buffer", [2, 7, 1000])
def test_documents_from_files(tmp_path, buffer):
    half = len(DOCUMENTS) // 2
    plain, packed = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    plain.write_text("\n\n".join("\n".join(d) for d in DOCUMENTS[:half]) + "\n\n\n")
    packed.write_bytes(gzip.compress("\n\n".join("\n".join(d) for d in DOCUMENTS[half:-1]).encode()))
    options = {"batch_size": 4, "max_length": 24}
    made = data.sentence_pairs([plain, packed], LETTER, buffer=buffer, seed=1, **options)
    known = data.sentence_pairs(DOCUMENTS[:-1], LETTER, **options)
    first, second = stream(made, 2)
    assert sum(len(t) for t, _, _ in first) == sum(len(t) for t, _, _ in stream(known)[0])
    assert flat(first) != flat(second)
    assert flat(stream(data.sentence_pairs([plain, packed], LETTER, buffer=buffer, seed=1, **options), 2)) == flat(
        [first, second]
    )


def test_other_backends_get_the_same_batches(monkeypatch):
    want = stream(data.sentence_pairs(DOCUMENTS, LETTER, batch_size=4, max_length=24), 2)
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    made = data.sentence_pairs(DOCUMENTS, LETTER, batch_size=4, max_length=24)
    assert isinstance(made, keras.utils.PyDataset)
    got = []
    for _ in range(2):
        batches = [made[i] for i in range(len(made))]
        got.append([(x["tokens"].tolist(), x["masked_positions"].tolist(), y) for x, y in batches])
        made.on_epoch_end()
    assert flat(got) == flat(want)
