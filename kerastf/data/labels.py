"""Batches to fine-tune an encoder: labelled texts, tagged words. Shapes: B batch, T time, N classes."""

import numpy as np

from kerastf import text
from kerastf.data.batching import Batches, dataset, require_number, require_tokenizer
from kerastf.data.masking import pack, pack_tokens, pad_rows
from kerastf.errors import InputError


def class_numbers(labels, classes, what):
    """Labels as numbers of `classes`: names, or numbers already. How many classes, or their names, may be given."""
    names = None if classes is None or isinstance(classes, int) else list(classes)
    count = classes if isinstance(classes, int) else None if names is None else len(names)
    found = []
    for label in labels:
        if isinstance(label, str):
            if names is None or label not in names:
                told = "are not given" if names is None else f"are {', '.join(map(str, names))}"
                raise InputError(f"Each {what} must be one of `classes`, which {told}. Received: {label!r}")
            found.append(names.index(label))
            continue
        number = int(label)
        if number != label or number < 0 or (count is not None and number >= count):
            limit = "be at least 0" if count is None else f"be in [0, {count})"
            raise InputError(f"Each {what} must {limit}. Received: {label!r}")
        found.append(number)
    return found


def label_rows(texts, labels, tokenizer, *, max_length, classes=None, segments=True):
    """Packed texts with their labels, and what makes a batch of them; `labels` may be None."""
    tokenizer = require_tokenizer(tokenizer, "pad", "class", "separator")
    if isinstance(texts, str):
        raise InputError(f"Texts are a list of strings or pairs. Received: {text.short(texts)}")
    rows = [pack(t, tokenizer, max_length=max_length) for t in texts]
    numbers = None
    if labels is not None:
        numbers = class_numbers(labels, classes, "label")
        if len(numbers) != len(rows):
            raise InputError(f"Each text has a label. Received: {len(rows)} texts, {len(numbers)} labels")
    return _with_labels(rows, numbers, tokenizer, max_length, segments)


def _with_labels(rows, labels, tokenizer, max_length, segments=True):
    if not rows:
        raise InputError("There is no text to make batches of.")

    def make(part, _):
        x = pad_rows([row for row, _ in part], tokenizer, max_length)
        x = x if segments else x["tokens"]
        return x if labels is None else (x, np.array([label for _, label in part], "int32"))

    return list(zip(rows, labels or [None] * len(rows), strict=True)), make


def labelled(
    texts, labels, tokenizer, *, batch_size, max_length=128, classes=None, shuffle=None, drop_remainder=False, seed=0,
    first_epoch=0,
):  # fmt: skip
    """Batches to classify texts or pairs of texts.

    Args:
        texts: Strings, or pairs of strings. Longer ones are cut at their ends, the longer of a pair first.
        labels: A number for each, or a name of `classes`; None to predict, without labels and in the given order.
        tokenizer: A tokenizer trained with `special_tokens=text.BERT`.
        batch_size: How many rows B in a batch.
        max_length: Length T of a row, special tokens included.
        classes: The names of the classes in the order of their numbers, or how many there are; then each label is
            checked.
        shuffle: Whether each epoch has an order of its own; by default where there are labels.
        drop_remainder: Whether to leave out the last batch where it has fewer rows.
        seed: The same seed gives the same batches.
        first_epoch: The epoch of the first pass, to go on with a training.

    Returns:
        A `tf.data.Dataset` of `({"tokens": (B, T), "segments": (B, T)}, (B,))`, int32, without the second part where
        there are no labels; on the other backends a `keras.utils.PyDataset` of the same batches.

    Examples:
        >>> from kerastf import data, text
        >>> tokenizer = text.CharacterTokenizer("abc", special_tokens=text.BERT)
        >>> x, y = next(iter(data.labelled(["ab", "c"], [1, 0], tokenizer, batch_size=2, max_length=4, shuffle=False)))
        >>> x["tokens"].numpy().tolist(), y.numpy().tolist()
        ([[5, 0, 1, 6], [5, 2, 6, 3]], [1, 0])
    """
    require_number("batch_size", batch_size, 1)
    rows, make = label_rows(texts, labels, tokenizer, max_length=max_length, classes=classes)
    shuffle = labels is not None if shuffle is None else shuffle
    options = {"batch_size": batch_size, "shuffle": shuffle, "drop_remainder": drop_remainder, "seed": seed}
    return dataset(Batches(rows, make, **options), first_epoch)


def _align(words, tokenizer, max_length):
    """The tokens of words, and the position in the row of each word's first piece; None where the row ends before."""
    if isinstance(words, str) or not all(isinstance(w, str) for w in words):
        raise InputError(f"A sentence to tag is a list of words. Received: {text.short(words)}")
    tokens, places = [], []
    for word in words:
        places.append(len(tokens) + 1 if len(tokens) < max_length - 2 else None)
        pieces = tokenizer.encode(word)
        if not pieces and tokenizer.unknown_id is None:
            raise InputError(f"A word has no token, and the tokenizer no `unknown`. Received: {word!r}")
        tokens += pieces or [tokenizer.unknown_id]
    if not tokens:
        raise InputError("A sentence to tag has at least one word. Received: []")
    return tokens, places


def tag_rows(sentences, tags, tokenizer, *, max_length, classes=None, segments=True):
    """Packed words with their tags, and what makes a batch of them; `tags` may be None."""
    require_number("max_length", max_length, 3)
    tokenizer = require_tokenizer(tokenizer, "pad", "class", "separator")
    sentences = list(sentences)
    aligned = [_align(words, tokenizer, max_length) for words in sentences]
    labels = None
    if tags is not None:
        labels = []
        for words, named, (_, places) in zip(sentences, tags, aligned, strict=True):
            if len(words) != len(named):
                raise InputError(f"Each word has a tag. Received: {len(words)} words, {len(named)} tags")
            row = np.full(max_length, -1, "int32")
            for number, place in zip(class_numbers(named, classes, "tag"), places, strict=True):
                if place is not None:
                    row[place] = number
            labels.append(row)
    rows = [pack_tokens([tokens], tokenizer, max_length) for tokens, _ in aligned]
    return _with_labels(rows, labels, tokenizer, max_length, segments)


def tagged(
    sentences, tags, tokenizer, *, batch_size, max_length=128, classes=None, shuffle=None, drop_remainder=False,
    seed=0, first_epoch=0,
):  # fmt: skip
    """Batches to tag words: the first piece of a word carries its tag, and the others do not count.

    Args:
        sentences: Lists of words. Words beyond the length are cut off.
        tags: A list for each: a number per word, or a name of `classes`; None to predict, in the given order.
        tokenizer: A tokenizer trained with `special_tokens=text.BERT`.
        batch_size: How many rows B in a batch.
        max_length: Length T of a row, special tokens included.
        classes: The names of the tags in the order of their numbers, or how many there are.
        shuffle: Whether each epoch has an order of its own; by default where there are tags.
        drop_remainder: Whether to leave out the last batch where it has fewer rows.
        seed: The same seed gives the same batches.
        first_epoch: The epoch of the first pass, to go on with a training.

    Returns:
        A `tf.data.Dataset` of `({"tokens": (B, T), "segments": (B, T)}, (B, T))`, int32, with -1 for what does not
        count; on the other backends a `keras.utils.PyDataset` of the same batches.

    Examples:
        >>> from kerastf import data, text
        >>> tokenizer = text.CharacterTokenizer("abc", special_tokens=text.BERT)
        >>> sizes = {"batch_size": 1, "max_length": 6}
        >>> x, y = next(iter(data.tagged([["ab", "c"]], [["B-X", "O"]], tokenizer, classes=["O", "B-X"], **sizes)))
        >>> x["tokens"].numpy().tolist(), y.numpy().tolist()
        ([[5, 0, 1, 2, 6, 3]], [[-1, 1, -1, 0, -1, -1]])
    """
    require_number("batch_size", batch_size, 1)
    rows, make = tag_rows(sentences, tags, tokenizer, max_length=max_length, classes=classes)
    shuffle = tags is not None if shuffle is None else shuffle
    options = {"batch_size": batch_size, "shuffle": shuffle, "drop_remainder": drop_remainder, "seed": seed}
    return dataset(Batches(rows, make, **options), first_epoch)


def word_tags(predictions, sentences, tokenizer, *, classes, outside="O"):
    """The tags of words, from what a tagger predicts for pieces: the first piece of a word decides.

    Args:
        predictions: Scores `(rows, T, N)`, as `model.predict` gives them for `tagged(sentences, None, ...)`.
        sentences: The lists of words.
        tokenizer: The tokenizer of the batches.
        classes: The names of the tags in the order of their numbers.
        outside: The tag of words that were cut off.

    Returns:
        A list of tags for each sentence, one per word.
    """
    tokenizer = require_tokenizer(tokenizer, "class", "separator")
    best = np.argmax(np.asarray(predictions), axis=-1)  # (rows, T)
    sentences = list(sentences)
    if best.ndim != 2 or len(best) != len(sentences):
        raise InputError(
            f"Each sentence has a row of predictions (rows, T, N). Received: {len(sentences)} sentences, predictions "
            f"of shape {np.shape(predictions)}"
        )
    found = []
    for row, words in zip(best, sentences, strict=True):
        _, places = _align(words, tokenizer, best.shape[1])
        found.append([outside if p is None else classes[row[p]] for p in places])
    return found
