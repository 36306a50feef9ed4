"""From the records of one part to its feed, task by task. Shapes: B batch, T time.

A task has the options it knows with their defaults, the special tokens its tokenizer needs, and a function that makes
the feed of a part from records with the task's roles as keys.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kerastf import text
from kerastf.data.batching import Batches, Stream, require_tokenizer
from kerastf.data.feeds import Feed
from kerastf.data.images import Pictures
from kerastf.data.labels import label_rows, tag_rows
from kerastf.data.language import Windows
from kerastf.data.large import Documents, LargeBatches, LargeText, windows_as_they_come
from kerastf.data.neighbours import Neighbours
from kerastf.data.parallel import Buckets, encode_pairs
from kerastf.data.pretraining import masker, pair_masker, pair_rows, text_rows
from kerastf.data.spans import span_rows
from kerastf.errors import InputError

PIECE = 2**20  # characters encoded at a time


class Task(NamedTuple):
    """What there is to know of a task."""

    feed: Callable[..., Feed]
    options: dict[str, Any]
    tokenizer: str | None = "wordpiece"
    special: tuple[str, ...] = text.BERT


def _plan(o):
    """Options of `Batches`."""
    return {"batch_size": o.batch_size, "shuffle": o.shuffle, "drop_remainder": True, "seed": o.seed}


def _feed(rows, make, o, **more):
    return Feed(Batches(rows, make, **_plan(o)), **{"unit": "tokens", "per_row": o.length, **more})


def _lines(document):
    """The lines of a text as `text.read_lines` gives those of a file: only a line feed ends a line."""
    return (line.rstrip("\r") for line in document.split("\n"))


def lines(records):
    """The lines of all texts that are not blank."""
    return [line for r in records for line in _lines(r["text"]) if line.strip()]


def documents(records):
    """Documents as lists of sentences: a line is a sentence, and a blank line ends a document."""
    found = []
    for record in records:
        found.append([])
        for line in _lines(record["text"]):
            if line.strip():
                found[-1].append(line)
            else:
                found.append([])
    return [d for d in found if d]


def _pieces(document):
    """A text in pieces that end with a line, so that its numbers need not exist as one list."""
    start = 0
    while start < len(document):
        end = document.find("\n", start + PIECE) + 1 or len(document)
        yield document[start:end]
        start = end


def join_documents(records, tokenizer):
    """The tokens of all documents, each ended by the end token where there are several."""
    end = [] if tokenizer.end_id is None or len(records) == 1 else [tokenizer.end_id]
    found = [np.zeros(0, "int32")]
    for record in records:
        found += [np.array(tokenizer.encode(piece), "int32") for piece in _pieces(record["text"])]
        found.append(np.array(end, "int32"))
    return np.concatenate(found)


def _large(source, make, o, length):
    """Windows of what does not fit into memory: by number where places can be chosen, otherwise as it comes."""
    if not isinstance(source, LargeText | Documents):
        blocks = lambda: windows_as_they_come(source, o.tokenizer, length, min(length, o.length), o.buffer)  # noqa: E731
        stream = Stream(blocks, lambda rows, rng: make(np.stack(rows), rng), **_plan(o))
        return Feed(stream, unit="tokens", per_row=o.length)
    batches = LargeBatches(
        source, o.tokenizer, make, length=length, stride=min(length, o.length), batch_size=o.batch_size, seed=o.seed
    )  # fmt: skip
    return Feed(batches, unit="tokens", per_row=o.length)


def language(records, o):
    """The next token: windows of all documents joined."""
    if not isinstance(records, list):
        return _large(records, lambda found, _: (found[:, :-1], found[:, 1:]), o, o.length + 1)
    tokens = join_documents(records, o.tokenizer)
    if len(tokens) <= o.length:
        raise InputError(
            f"A window and its target need {o.length + 1} tokens. Received: {len(tokens)} tokens, length={o.length}"
        )
    windows = Windows(tokens, o.length)
    # Windows at random places: the same text is never cut in the same way twice, which a small text needs.
    batches = Batches(windows, windows.draw if o.shuffle else windows.make, plain=windows.make, **_plan(o))
    return Feed(batches, unit="tokens", per_row=o.length)


def sequences(records, o):
    """The next token, each line a sequence of its own: from its start token to its end token, padded."""
    tokenizer = require_tokenizer(o.tokenizer, "pad", "start", "end")

    def make(rows, _):
        rows = [[tokenizer.start_id, *tokenizer.encode(r["text"]), tokenizer.end_id][: o.length + 1] for r in rows]
        tokens = text.pad(rows, tokenizer.pad_id, o.length + 1)  # (B, T + 1)
        return tokens[:, :-1], tokens[:, 1:]

    return _feed(records, make, o)


def masked(records, o):
    """Hidden tokens of lines that share rows."""
    tokenizer = require_tokenizer(o.tokenizer, "pad", "class", "separator", "mask")
    make = masker(tokenizer, max_length=o.length, mask_rate=o.mask_rate)
    if not isinstance(records, list):
        if not o.join:
            raise InputError(
                "What is larger than memory is read in windows that go on from text to text; for rows of their own "
                "raise `stream_above`. Received: join=False"
            )
        return _large(records, make, o, o.length - 2)
    rows = list(text_rows(lines(records), tokenizer, o.length - 2, o.join))
    if not rows:
        raise InputError("There is no text to make batches of: all texts are empty.")
    return _feed(rows, make, o)


def masked_pairs(records, o):
    """Hidden tokens, and whether the second segment follows the first."""
    tokenizer = require_tokenizer(o.tokenizer, "pad", "class", "separator", "mask")
    rows = pair_rows(documents(records), tokenizer, max_length=o.length)
    return _feed(rows, pair_masker(tokenizer, max_length=o.length, mask_rate=o.mask_rate), o)


def classification(records, o):
    """Texts, or pairs of them, and their classes."""
    texts, labels = [r["text"] for r in records], [r["label"] for r in records]
    options = {"max_length": o.length, "classes": o.classes, "segments": o.segments}
    return _feed(*label_rows(texts, labels, o.tokenizer, **options), o, items=records)


def tagging(records, o):
    """Words and their tags."""
    sentences, tags = [r["words"] for r in records], [r["tags"] for r in records]
    options = {"max_length": o.length, "classes": o.classes, "segments": o.segments}
    return _feed(*tag_rows(sentences, tags, o.tokenizer, **options), o, items=records)


def span(records, o):
    """Questions whose answer is a part of their context."""
    rows, make = span_rows(records, o.tokenizer, max_length=o.length, stride=o.stride)
    return _feed(rows, make, o, items=records)


def translation(records, o):
    """Pairs of a source and a target."""
    source, target = o.tokenizer
    rows = encode_pairs([(r["source"], r["target"]) for r in records], source, target, o.length, o.too_long)
    batches = Buckets(
        rows, (source.pad_id, target.pad_id), multiple=o.multiple, bucket=o.bucket and not o.static,
        sizes=o.length if o.static else None, **_plan(o),
    )  # fmt: skip
    return Feed(batches, unit="pairs", items=records)


def bidirectional(records, o):
    """Sentences as both inputs and targets; words as characters where the tokenizer knows them."""
    tokenizer = require_tokenizer(o.tokenizer, "pad", "start", "end")
    room, begin, end = o.length - 2, [tokenizer.start_id], [tokenizer.end_id]
    spelled = isinstance(tokenizer, text.WordCharacterTokenizer)
    words = {}  # each word is spelled once: 0 is no word, 1 and 2 stand around a sentence
    rows = []
    for line in lines(records):
        numbers = [words.setdefault(w, len(words) + 3) for w in line.split()] if spelled else None
        tokens = tokenizer.encode(line)
        for at in range(0, len(tokens), room):
            rows.append((begin + tokens[at : at + room] + end, spelled and [1, *numbers[at : at + room], 2]))
    if not rows:
        raise InputError("There is no text to make batches of: all texts are empty.")
    if spelled:
        around = tokenizer.encode_characters([["x"]])[0]  # (3, W)
        around = [np.zeros_like(around[0]), around[0], around[2]]
        table = np.array([*around, *map(tokenizer.spell_word, words)], "int32")  # (words, W)

    def make(part, _):
        tokens = text.pad([t for t, _ in part], tokenizer.pad_id, o.length)  # (B, T)
        return (table[text.pad([w for _, w in part], 0, o.length)] if spelled else tokens), tokens

    return _feed(rows, make, o)


def word_vectors(records, o):
    """Words and how far their windows reach."""
    batches = Neighbours(
        lines(records), o.tokenizer, window=o.window, length=o.length, batch_size=o.batch_size, subsample=o.subsample,
        shuffle=o.shuffle, seed=o.seed,
    )  # fmt: skip
    return Feed(batches, unit="tokens", per_row=o.length)


def images(records, o):
    """Images and their classes, moved at random in training."""
    made = Pictures(records.images, records.labels, shift=o.shift, flip=o.flip)
    batches = Batches(range(len(records.labels)), made.make, plain=made.plain, **_plan(o))
    return Feed(batches, unit="images", items=records)


TASKS = {
    "language": Task(language, {"length": 128, "buffer": 10_000}, "byte", ("end", "unknown")),
    "sequences": Task(sequences, {"length": 64}, "character", text.SPECIAL),
    "masked": Task(masked, {"length": 128, "mask_rate": 0.15, "join": True, "buffer": 10_000}),
    "masked_pairs": Task(masked_pairs, {"length": 128, "mask_rate": 0.15}),
    "classification": Task(classification, {"length": 128, "classes": None, "segments": True}),
    "tagging": Task(tagging, {"length": 128, "classes": None, "segments": True}),
    "span": Task(span, {"length": 384, "stride": 128}),
    "translation": Task(
        translation, {"length": 64, "too_long": "drop", "bucket": True, "multiple": 8}, "wordpiece", text.SPECIAL
    ),
    "bidirectional": Task(bidirectional, {"length": 32}, "word_characters", text.SPECIAL),
    "word_vectors": Task(word_vectors, {"length": 32, "window": 5, "subsample": 1e-3}, "word", ()),
    "images": Task(images, {"classes": None, "shift": 0, "flip": False}, None),
}
