"""Vectors of words as NumPy arrays: neighbours, analogies, the word2vec file format. Shapes: V words, C channels."""

from pathlib import Path

import numpy as np

from kerastf.checkpoint import atomic
from kerastf.errors import FileFormatError, InputError
from kerastf.text import read_lines


def normalised(matrix):
    """Rows of length 1; a row of zeros stays."""
    return matrix / np.maximum(np.linalg.norm(matrix, axis=-1, keepdims=True), 1e-12)


def closest(unit, queries, k, exclude):
    """The rows nearest to each query by cosine.

    Args:
        unit: Rows of length 1, `(V, C)`.
        queries: `(N, C)`, of any length.
        k: How many.
        exclude: `(N, M)`, the rows that are no answer to each query.

    Returns:
        Their numbers `(N, k)`, nearest first, and their cosines `(N, k)`.
    """
    scores = normalised(queries) @ unit.T  # (N, V)
    np.put_along_axis(scores, np.asarray(exclude, "int64"), -np.inf, axis=1)
    k = min(k, unit.shape[0] - exclude.shape[1])
    best = np.argpartition(-scores, range(k), axis=1)[:, :k] if k > 0 else np.zeros((len(scores), 0), "int64")
    return best, np.take_along_axis(scores, best, axis=1)


def read_questions(path):
    """The questions of an analogy file: by section, lists of four words.

    Args:
        path: A text file with lines `: section` and `a b c d`, a is to b as c is to d; plain or `.gz`.

    Raises:
        FileFormatError: A line has other than four words, or there is no question.
    """
    sections, questions = {}, None
    for number, line in enumerate(read_lines(path), 1):
        words = line.split()
        if line.startswith(":"):
            questions = sections.setdefault(line[1:].strip(), [])
        elif len(words) == 4:
            questions = sections.setdefault("", []) if questions is None else questions
            questions.append(words)
        elif words:
            raise FileFormatError(f"{Path(path).name}, line {number}: a question has four words. Received: {line!r}")
    if not any(sections.values()):
        raise FileFormatError(f"{Path(path).name} has no questions: lines of four words.")
    return sections


def answer(unit, questions):
    """By 3CosAdd, `argmax_d cos(d, b - a + c)` without a, b, c: the number of each answer.

    Args:
        unit: Rows of length 1, `(V, C)`.
        questions: Numbers of a, b, c, `(N, 3)`.
    """
    found = [
        closest(unit, unit[q[:, 1]] - unit[q[:, 0]] + unit[q[:, 2]], 1, q)[0][:, 0]
        for q in np.array_split(questions, max(1, len(questions) // 512))  # (N, V) scores would be large
    ]
    return np.concatenate(found)


def write_word2vec(path, words, matrix, *, binary=False):
    """Writes vectors in the format of word2vec, text or binary. The file appears whole or not at all."""
    for word in words:
        if not word or any(c in word for c in " \n"):
            raise InputError(f"In this format a word has no space or line feed. Received: {word!r}")
    with atomic(path) as temporary, open(temporary, "wb") as file:
        file.write(f"{len(words)} {matrix.shape[1]}\n".encode())
        for word, row in zip(words, np.asarray(matrix, "<f4"), strict=True):
            # Nine digits bring every float32 back unchanged.
            numbers = row.tobytes() + b"\n" if binary else (" ".join(f"{v:.9g}" for v in row) + "\n").encode()
            file.write(word.encode("utf-8") + b" " + numbers)
