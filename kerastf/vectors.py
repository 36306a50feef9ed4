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


def read_word2vec(path):
    """Reads vectors in the format of word2vec, text or binary; which of them it is, the file shows.

    Args:
        path: The file.

    Returns:
        The words, and their vectors `(V, C)` as float32.

    Raises:
        FileFormatError: The file is not what its first line says.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            return _read_rows(file, path.name, path.stat().st_size)
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from None


def _read_rows(file, name, size):
    head = file.readline(64).split()
    if len(head) != 2 or not all(n.isdigit() for n in head):
        raise FileFormatError(
            f"{name} is no file of word2vec: its first line says no number of words and of dimensions."
        )
    count, dim = map(int, head)
    if not count or not dim or count * (2 * dim + 1) > size:  # a number takes two bytes at least, a word one
        raise FileFormatError(f"{name} says {count:,} words of {dim:,} numbers, and has {size:,} bytes.")
    start = file.tell()
    binary = not _is_text(file.readline(64 + 32 * dim), dim)
    file.seek(start)
    words, matrix = [], np.empty((count, dim), "float32")
    for row in matrix:
        words.append(_read_word(file, name, len(words)))
        if binary:
            data = file.read(4 * dim)
            found = np.frombuffer(data, "<f4") if len(data) == 4 * dim else []
        else:
            found = _numbers(file.readline())
        if len(found) != dim:
            raise FileFormatError(f"{name}: the row of {words[-1]!r}, number {len(words)}, has not {dim} numbers.")
        row[:] = found
    if len(set(words)) != count:
        raise FileFormatError(f"{name} has a word twice.")
    return words, matrix


def _is_text(line, dim):
    return len(line.split(b" ", 1)) == 2 and len(_numbers(line.split(b" ", 1)[1])) == dim


def _numbers(text):
    try:
        return [float(n) for n in text.split()]
    except ValueError:
        return []


def _read_word(file, name, row):
    found = b""
    while not found.endswith(b" "):
        sign = file.read(1)
        if not sign or len(found) > 1000:
            raise FileFormatError(f"{name} ends within row {row + 1}, or a word has no end there.")
        if not (sign == b"\n" and not found):  # a binary row may end with a line feed
            found += sign
    try:
        return found[:-1].decode("utf-8")
    except UnicodeDecodeError:
        raise FileFormatError(f"{name}: the word of row {row + 1} is not UTF-8.") from None
