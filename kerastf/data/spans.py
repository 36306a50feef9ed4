"""Questions whose answer is a span of a context: windows of tokens, and back to characters. Shapes: B batch, T time."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kerastf import text
from kerastf.data.batching import Batches, dataset, require_number, require_tokenizer
from kerastf.data.masking import pack_tokens, pad_rows
from kerastf.errors import FileFormatError, InputError


class Window(NamedTuple):
    """A part of a context behind its question, as the model sees it."""

    record: int  # number of the record it belongs to
    row: tuple  # tokens and segments
    first: int  # position in the row of the context's first token here
    spans: list  # characters of the context that each of its tokens here stands for


def read_squad(path):
    """The records of a file in SQuAD's format.

    Args:
        path: A `.json` file, plain or `.gz`, as the Stanford Question Answering Dataset has it.

    Returns:
        A list of `{"id", "question", "context", "answers": [{"text", "answer_start"}]}`.

    Raises:
        FileFormatError: The file is not in that format.
    """
    path = Path(path)
    if not path.is_file():
        raise FileFormatError(f"There is no file {path}. Received: path={str(path)!r}")
    whole = "\n".join(text.read_lines(path))
    try:
        articles = json.loads(whole)["data"]
        return [
            {
                "id": question["id"], "question": question["question"], "context": paragraph["context"],
                "answers": [{k: a[k] for k in ("text", "answer_start")} for a in question["answers"]],
            }
            for article in articles for paragraph in article["paragraphs"] for question in paragraph["qas"]
        ]  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"{path.name} is not in SQuAD's format ({type(error).__name__}: {error}).") from None


def _check(record, number):
    missing = [k for k in ("question", "context") if not isinstance(record.get(k), str) or not record[k].strip()]
    if missing:
        raise InputError(f"A record has a question and a context that are not empty. Record {number} lacks: {missing}")


def windows_of(records, tokenizer, *, max_length, stride):
    """The windows of records: `[CLS] question [SEP] part of the context [SEP]`.

    Parts begin `stride` tokens after each other, so that every span up to the overlap stands whole in one of them.
    """
    require_number("stride", stride, 1)
    known, found = {}, []
    for number, record in enumerate(records):
        _check(record, number)
        question = tokenizer.encode(record["question"])
        room = max_length - 3 - len(question)
        if room < stride:
            raise InputError(
                f"A question of {len(question)} tokens leaves {max(room, 0)} to its context, fewer than the stride. "
                f"Received: max_length={max_length}, stride={stride}"
            )
        if record["context"] not in known:
            known[record["context"]] = tokenizer.encode_spans(record["context"])
        tokens, spans = known[record["context"]]
        starts = [0]
        while starts[-1] + room < len(tokens):
            starts.append(starts[-1] + stride)
        for start in starts:
            row = pack_tokens([question, tokens[start : start + room]], tokenizer, max_length)
            found.append(Window(number, row, len(question) + 2, spans[start : start + room]))
    return found


def _answer(record, number):
    """The first answer of a record; None where it has none, as SQuAD 2.0 has it for what cannot be answered."""
    given = record.get("answers")
    try:
        if isinstance(given, dict):  # columns, as Hugging Face's datasets has them
            rows = list(zip(given["text"], given["answer_start"], strict=True))
            answer = {"text": rows[0][0], "answer_start": rows[0][1]} if rows else None
        else:
            answer = given[0] if len(given) else None
        if answer is None or (isinstance(answer["text"], str) and answer["answer_start"] + 0 >= 0):
            return answer
    except (TypeError, KeyError, ValueError):
        pass
    raise InputError(
        "Answers are a list of {'text', 'answer_start'}, or a dict of both as lists; what has no answer has an empty "
        f"list. Received: {text.short(given)} in record {number}"
    )


def _label(window, record):
    """First and last position of the answer in the row; 0, the class token, where the window has it not whole."""
    answer = _answer(record, window.record)
    if answer is None:
        return 0, 0
    begin, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
    if record["context"][begin:end] != answer["text"]:
        raise InputError(
            f"An answer must stand in its context at `answer_start`. Received: {text.short(answer)}, where the context "
            f"has {text.short(record['context'][begin:end])}"
        )
    inside = [i for i, (a, b) in enumerate(window.spans) if a < end and b > begin]
    if not inside or window.spans[inside[0]][0] > begin or window.spans[inside[-1]][1] < end:
        return 0, 0
    return window.first + inside[0], window.first + inside[-1]


def span_rows(records, tokenizer, *, max_length, stride, answers=True):
    """Windows with the places of their answers, and what makes a batch of them."""
    tokenizer = require_tokenizer(tokenizer, "pad", "class", "separator")
    records = list(records)
    windows = windows_of(records, tokenizer, max_length=max_length, stride=stride)
    if not windows:
        raise InputError("There is no question to make batches of.")

    def make(part, _):
        x = pad_rows([row for row, _ in part], tokenizer, max_length)
        return (x, np.array([label for _, label in part], "int32")) if answers else x

    return [(w.row, _label(w, records[w.record]) if answers else None) for w in windows], make


def questions(
    records, tokenizer, *, batch_size, max_length=384, stride=128, answers=True, shuffle=None, drop_remainder=False,
    seed=0, first_epoch=0,
):  # fmt: skip
    """Batches to answer questions by a span of their context.

    A context that does not fit is read in several windows, each a row. The label is the first and the last token of the
    first answer, or twice 0, the class token, in a window that has it not whole and where there is no answer.

    Args:
        records: `{"question", "context", "answers": [{"text", "answer_start"}]}` each, as `read_squad` gives them;
            answers may also be a dict of columns, `{"text": [...], "answer_start": [...]}`.
        tokenizer: A tokenizer trained with `special_tokens=text.BERT` that keeps characters: word pieces do.
        batch_size: How many rows B in a batch.
        max_length: Length T of a row, question and special tokens included.
        stride: How many tokens after each other windows begin.
        answers: Whether to give labels; without, the order is the given.
        shuffle: Whether each epoch has an order of its own; by default where there are labels.
        drop_remainder: Whether to leave out the last batch where it has fewer rows.
        seed: The same seed gives the same batches.
        first_epoch: The epoch of the first pass, to go on with a training.

    Returns:
        A `tf.data.Dataset` of `({"tokens": (B, T), "segments": (B, T)}, (B, 2))`, int32; on the other backends a
        `keras.utils.PyDataset` of the same batches.
    """
    require_number("batch_size", batch_size, 1)
    rows, make = span_rows(records, tokenizer, max_length=max_length, stride=stride, answers=answers)
    shuffle = answers if shuffle is None else shuffle
    options = {"batch_size": batch_size, "shuffle": shuffle, "drop_remainder": drop_remainder, "seed": seed}
    return dataset(Batches(rows, make, **options), first_epoch)


def answers(predictions, records, tokenizer, *, max_length=384, stride=128, max_answer=30):
    """The answers in their contexts, from what a model predicts for windows of tokens.

    Of all spans of at most `max_answer` tokens that lie in the context, the one with the highest
    `start score + end score` over all windows of a record is its answer.

    Args:
        predictions: Scores `(rows, T, 2)` of start and end, as `model.predict` gives them for
            `questions(records, ..., answers=False)`.
        records: The records.
        tokenizer: The tokenizer of the batches.
        max_length: As for `questions`.
        stride: As for `questions`.
        max_answer: The most tokens of an answer.

    Returns:
        `{"text", "start", "end", "score"}` for each record: `context[start:end]` is the text.
    """
    require_number("max_answer", max_answer, 1)
    tokenizer = require_tokenizer(tokenizer, "class", "separator")
    records = list(records)
    windows = windows_of(records, tokenizer, max_length=max_length, stride=stride)
    scores = np.asarray(predictions, "float64")
    if scores.shape != (len(windows), max_length, 2):
        raise InputError(
            f"The records have {len(windows)} windows, so predictions are of shape {(len(windows), max_length, 2)}. "
            f"Received: shape {scores.shape}"
        )
    found = [{"text": "", "start": 0, "end": 0, "score": -np.inf} for _ in records]
    for window, row in zip(windows, scores, strict=True):
        count = len(window.spans)
        start, end = row[window.first : window.first + count].T  # (n,) each
        both = start[:, None] + end[None, :]  # (n, n)
        both = np.where(
            np.triu(np.ones((count, count), bool)) & ~np.triu(np.ones((count, count), bool), max_answer), both, -np.inf
        )
        first, last = np.unravel_index(both.argmax(), both.shape) if count else (0, 0)
        best = found[window.record]
        if count and both[first, last] > best["score"]:
            begin, finish = window.spans[first][0], window.spans[last][1]
            best.update(
                text=records[window.record]["context"][begin:finish], start=begin, end=finish,
                score=float(both[first, last]),
            )  # fmt: skip
    return found
