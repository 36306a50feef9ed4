"""Batches to pre-train an encoder: masked text, next sentences. Shapes: B batch, T time, M masked."""

from pathlib import Path

import numpy as np

from kerastf import text
from kerastf.data.batching import Batches, Stream, dataset, require_number, require_tokenizer
from kerastf.data.masking import mask_tokens, pack_tokens, pad_rows, slots_of
from kerastf.errors import InputError


def require_rate(mask_rate):
    if not 0 < mask_rate < 1:
        raise InputError(f"`mask_rate` must be between 0 and 1. Received: mask_rate={mask_rate}")


def _check(batch_size, max_length, mask_rate, least):
    require_number("batch_size", batch_size, 1)
    require_number("max_length", max_length, least)
    require_rate(mask_rate)


def _files(source):
    """The files that are meant, or None where texts are given."""
    if isinstance(source, str | Path):
        return [Path(source)]
    if isinstance(source, list | tuple) and source and all(isinstance(p, Path) for p in source):
        return list(source)
    return None


def _blocks(items, size):
    """Lists of at most `size` items."""
    block = []
    for item in items:
        block.append(item)
        if len(block) == size:
            yield block
            block = []
    if block:
        yield block


def text_rows(texts, tokenizer, length, join):
    """Rows of at most `length` tokens; joined texts have a separator between them, and fill their rows."""
    rest: list[int] = []
    for line in texts:
        tokens = tokenizer.encode(line)
        if not tokens:
            continue
        rest = [*rest, tokenizer.separator_id, *tokens] if rest else tokens
        at = 0  # what is left is not copied for each row: a line may be long
        while len(rest) - at > length or (at < len(rest) and not join):
            row = rest[at : at + length]
            at += len(row)
            at += at < len(rest) and rest[at] == tokenizer.separator_id
            yield np.array(row[:-1] if row[-1] == tokenizer.separator_id else row, "int32")
        rest = rest[at:]
    if rest:
        yield np.array(rest, "int32")


def masker(tokenizer, *, max_length, mask_rate):
    """What makes a batch of rows of tokens, some of them hidden."""
    slots = slots_of(mask_rate, max_length, 2)

    def make(rows, rng):
        x = pad_rows([pack_tokens([r], tokenizer, max_length) for r in rows], tokenizer, max_length)
        x["tokens"], x["masked_positions"], labels = mask_tokens(
            x["tokens"], tokenizer, rng, rate=mask_rate, slots=slots
        )
        return x, labels

    return make


def masked_text(
    texts, tokenizer, *, batch_size, max_length=128, mask_rate=0.15, join=True, shuffle=True, drop_remainder=False,
    buffer=10_000, seed=0, first_epoch=0,
):  # fmt: skip
    """Batches for a masked language model: some tokens are hidden, and are to be found.

    Each pass over the data set is the next epoch, with an order and masks of its own, a function of `(seed, epoch)`.

    Args:
        texts: Strings; or a UTF-8 text file, plain or `.gz`, or a list of `pathlib.Path`, which are read anew in each
            epoch and never held whole. Lines without a token are passed over.
        tokenizer: A tokenizer trained with `special_tokens=text.BERT`.
        batch_size: How many rows B in a batch.
        max_length: Length T of a row, with its class token and separator. Longer texts go on in the next row.
        mask_rate: The share of ordinary tokens that are to be found.
        join: Whether texts that follow each other share a row, with a separator between them. Otherwise each begins
            a row of its own.
        shuffle: Whether each epoch has an order of its own.
        drop_remainder: Whether to leave out the last batch where it has fewer rows.
        buffer: How many rows of a file are held and shuffled at a time.
        seed: The same seed gives the same batches.
        first_epoch: The epoch of the first pass, to go on with a training.

    Returns:
        A `tf.data.Dataset` of `({"tokens": (B, T), "segments": (B, T), "masked_positions": (B, M)}, (B, M))`, int32,
        with -1 in the label where a row has fewer masked positions than M; for strings on the other backends a
        `keras.utils.PyDataset` of the same batches.

    Examples:
        >>> from kerastf import data, text
        >>> tokenizer = text.CharacterTokenizer("abc", special_tokens=text.BERT)
        >>> x, y = next(iter(data.masked_text(["abcabcabcabc"], tokenizer, batch_size=1, max_length=14)))
        >>> x["tokens"].shape.as_list(), x["masked_positions"].shape.as_list(), y.shape.as_list()
        ([1, 14], [1, 2], [1, 2])
    """
    _check(batch_size, max_length, mask_rate, 3)
    tokenizer = require_tokenizer(tokenizer, "pad", "class", "separator", "mask")
    make = masker(tokenizer, max_length=max_length, mask_rate=mask_rate)
    options = {"batch_size": batch_size, "shuffle": shuffle, "drop_remainder": drop_remainder, "seed": seed}
    files = _files(texts)
    if files is None:
        rows = list(text_rows(texts, tokenizer, max_length - 2, join))
        if not rows:
            raise InputError("There is no text to make batches of: all texts are empty.")
        return dataset(Batches(rows, make, **options), first_epoch)
    require_number("buffer", buffer, 1)

    def blocks():
        lines = (line for file in files for line in text.read_lines(file))
        yield from _blocks(text_rows(lines, tokenizer, max_length - 2, join), buffer)

    return dataset(Stream(blocks, make, **options), first_epoch)


def _read_documents(files):
    """Documents of files: one sentence per line, a blank line between documents."""
    for file in files:
        document = []
        for line in text.read_lines(file):
            if line.strip():
                document.append(line)
            elif document:
                yield document
                document = []
        if document:
            yield document


def _encode_documents(documents, tokenizer):
    for document in documents:
        if isinstance(document, str):
            raise InputError(f"A document is a list of sentences. Received: {text.short(document)}")
        sentences = [np.array(s, "int32") for s in map(tokenizer.encode, document) if s]
        if sentences:
            yield sentences


def _chunks(document, length):
    """From where to where consecutive sentences fill a row; at least two each, and none left out."""
    first = 0
    while first < len(document) - 1:
        last, total = first, 0
        while last < len(document) and (last - first < 2 or total + len(document[last]) <= length):
            total += len(document[last])
            last += 1
        yield first, last
        # A last sentence alone would have no next one: its row begins one sentence earlier.
        first = last - 1 if last == len(document) - 1 else last


def _other_sentences(pool, number, second, rng):
    """Sentences of another document with about as many tokens as a segment; after its end the next document goes on."""
    other = rng.integers(len(pool) - 1)
    other += other >= number
    at = rng.integers(max(1, len(pool[other]) - len(second) + 1))
    wanted = sum(map(len, second))
    found: list = []
    while wanted > 0:
        if at == len(pool[other]) or other == number:
            other, at = (other + 1) % len(pool), 0
            continue
        sentence = pool[other][at]
        if found and len(sentence) > 2 * wanted:  # without it the length is nearer
            break
        found.append(sentence)
        wanted -= len(sentence)
        at += 1
    return found


def draw_pair(pool, number, first, last, rng):
    """Two segments of a chunk of sentences, and whether the second really follows the first: half of the time.

    Otherwise as much of another document stands there, so that the length tells next to nothing.
    """
    document = pool[number]
    cut = first + rng.integers(1, last - first)
    real = rng.random() < 0.5
    second = document[cut:last]
    if not real:
        second = _other_sentences(pool, number, second, rng)
    return np.concatenate(document[first:cut]), np.concatenate(second), int(real)


def pair_masker(tokenizer, *, max_length, mask_rate):
    """What makes a batch of chunks of sentences: each cut in two, paired and masked anew."""
    slots = slots_of(mask_rate, max_length, 3)

    def make(rows, rng):
        drawn = [draw_pair(*row, rng) for row in rows]
        x = pad_rows([pack_tokens(d[:2], tokenizer, max_length) for d in drawn], tokenizer, max_length)
        x["tokens"], x["masked_positions"], labels = mask_tokens(
            x["tokens"], tokenizer, rng, rate=mask_rate, slots=slots
        )
        return x, {"masked_tokens": labels, "next_sentence": np.array([d[2] for d in drawn], "int32")}

    return make


def _chunk_rows(pool, max_length, start=0, checked=False):
    """The chunks of encoded documents, each with all documents, from which others are drawn."""
    found = []
    for number in range(start, len(pool)):
        found += [(pool, number, *chunk) for chunk in _chunks(pool[number], max_length - 3)]
    if not checked and (len(pool) < 2 or not found):
        raise InputError(
            "Next sentences need at least two documents, and one of two sentences. "
            f"Received: {len(pool)} documents that are not empty, {sum(len(d) > 1 for d in pool)} of two sentences"
        )
    return found


def pair_rows(documents, tokenizer, *, max_length):
    """The rows of lists of sentences."""
    return _chunk_rows(list(_encode_documents(documents, tokenizer)), max_length)


def sentence_pairs(
    documents, tokenizer, *, batch_size, max_length=128, mask_rate=0.15, shuffle=True, drop_remainder=False,
    buffer=1000, seed=0, first_epoch=0,
):  # fmt: skip
    """Batches to pre-train BERT: hidden tokens to be found, and whether the second segment really follows the first.

    Consecutive sentences that fill a row are cut in two at random; half of the time the second part is replaced by
    another document, about as long; after its end the next one goes on. Each epoch cuts, pairs and masks anew, as a
    function of `(seed, epoch)`.

    Args:
        documents: Lists of sentences; or a UTF-8 text file, plain or `.gz`, or a list of `pathlib.Path`, with one
            sentence per line and a blank line between documents, read anew in each epoch and never held whole.
        tokenizer: A tokenizer trained with `special_tokens=text.BERT`.
        batch_size: How many rows B in a batch.
        max_length: Length T of a row, with its class token and separators. What does not fit is cut at the ends.
        mask_rate: The share of ordinary tokens that are to be found.
        shuffle: Whether each epoch has an order of its own.
        drop_remainder: Whether to leave out the last batch where it has fewer rows.
        buffer: How many documents of a file are held at a time; other documents are drawn from them.
        seed: The same seed gives the same batches.
        first_epoch: The epoch of the first pass, to go on with a training.

    Returns:
        A `tf.data.Dataset` of `({"tokens": (B, T), "segments": (B, T), "masked_positions": (B, M)}, {"masked_tokens":
        (B, M), "next_sentence": (B,)})`, int32; -1 where a row has fewer masked positions than M, and 1 for what really
        comes next. For lists on the other backends a `keras.utils.PyDataset` of the same batches.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3.1
    """
    _check(batch_size, max_length, mask_rate, 5)
    tokenizer = require_tokenizer(tokenizer, "pad", "class", "separator", "mask")
    make = pair_masker(tokenizer, max_length=max_length, mask_rate=mask_rate)
    options = {"batch_size": batch_size, "shuffle": shuffle, "drop_remainder": drop_remainder, "seed": seed}
    files = _files(documents)
    if files is None:
        rows = pair_rows(documents, tokenizer, max_length=max_length)
        return dataset(Batches(rows, make, **options), first_epoch)
    require_number("buffer", buffer, 2)

    def blocks():
        before: list = []
        for pool in _blocks(_encode_documents(_read_documents(files), tokenizer), buffer):
            start = len(before) if len(pool) < 2 else 0  # a document left alone is paired with those before it
            pool = [*before, *pool] if len(pool) < 2 else pool
            yield _chunk_rows(pool, max_length, start, checked=bool(before))
            before = pool

    return dataset(Stream(blocks, make, **options), first_epoch)
