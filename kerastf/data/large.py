"""Windows of text files larger than memory, read at random places. Shapes: B batch, T time.

The window of a row begins at a byte that is drawn from `(seed, step)`: no index, no pass over the file, no buffer that
must be filled. So memory is flat, and any step can be made at once.
"""

import functools
import itertools
import json
import os
import weakref
from pathlib import Path

import numpy as np

from kerastf import text
from kerastf.data.batching import GIVEN
from kerastf.errors import FileFormatError, InputError

READ = 2**14  # bytes read at a time for a window
LOOK = 2**12  # how far the end of a line is looked for
PIECES = 64  # a sample comes from so many places
HELD = 2**22  # the most bytes that are held out for `valid`


class LargeText:
    """A range of bytes of UTF-8 files, as one long text.

    Args:
        files: The files, `.txt` or `.jsonl`.
        key: For `.jsonl`, which key of a record is the text; None for plain text.
        first: The byte it begins with, counted over all files.
        last: The byte after its end; None for all.
    """

    def __init__(self, files, key=None, first=0, last=None):
        self.files = [Path(f) for f in files]
        self.key = key
        self.open = [os.open(f, os.O_RDONLY) for f in self.files]
        for number in self.open:
            weakref.finalize(self, os.close, number)
        self.ends = np.cumsum([os.fstat(n).st_size for n in self.open])
        self.first, self.last = first, int(self.ends[-1]) if last is None else last

    def __len__(self):
        return self.last - self.first

    def part(self, first, last):
        """Some bytes of the same files as a text of their own."""
        return LargeText(self.files, self.key, first, last)

    def read(self, at, size):
        """At most so many bytes of one file from a place on, where it stands, and whether the file ends there."""
        number = int(np.searchsorted(self.ends, at, side="right"))
        start = int(self.ends[number - 1]) if number else 0
        size = min(size, self.last - at)
        found = os.pread(self.open[number], size, at - start)
        return found, self.files[number].name, at + len(found) >= min(self.last, int(self.ends[number]))

    def align(self, at):
        """The nearest place from a byte on where a line begins, or where lines are long, a character."""
        if at == self.first:
            return at
        found, _, _ = self.read(at - 1, LOOK)
        line = found.find(b"\n") + 1
        if line:
            return at - 1 + line if at - 1 + line < self.last else self.first
        if self.key is not None:
            return self._line_before(at)
        skip = next((i for i, b in enumerate(found[1:]) if b & 0xC0 != 0x80), None)  # the bytes inside a character
        return self.first if skip is None else at + skip

    def _line_before(self, at):
        """Where the line of a byte begins: a record is never read from its middle."""
        size = LOOK
        while True:
            begin = max(self.first, at - size)
            found, _, _ = self.read(begin, at - begin)
            line = found.rfind(b"\n") + 1
            if line or begin == self.first:
                return begin + line
            size *= 2

    def texts(self, at, size=READ, again=True):
        """The text from a place on, piece by piece; None where a document ends. It goes on at the beginning."""
        rest, where = b"", at
        while True:
            found, name, ended = self.read(where, size)
            where += len(found)
            rest += found
            cut = len(rest) if ended else rest.rfind(b"\n") + 1
            if not cut and self.key is None:  # a line longer than what was read: cut between characters
                cut = next((i for i in range(len(rest) - 1, max(len(rest) - 5, 0), -1) if rest[i] & 0xC0 != 0x80), 0)
            if cut:
                yield from self._decode(rest[:cut], name, where - len(rest))
                rest = rest[cut:]
            if ended:
                if self.key is None:
                    yield None
                rest = b""
                if where >= self.last:
                    if not again:
                        return
                    where = self.first
            elif not cut:
                size *= 2

    def _decode(self, raw, name, at):
        try:
            decoded = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{name} is not UTF-8 text ({error.reason}), near byte {at + error.start}.") from None
        decoded = decoded.replace("\r\n", "\n").removeprefix("\ufeff")
        if self.key is None:
            yield decoded
            return
        for line in filter(str.strip, decoded.split("\n")):
            try:
                found = json.loads(line)[self.key]
            except (ValueError, KeyError, TypeError):
                told = f"{name}, near byte {at}: a line is not JSON with the key {self.key!r}. "
                raise FileFormatError(f"{told}Received: {text.short(line)}") from None
            if not isinstance(found, str):
                told = f"{name}, near byte {at}: `{self.key}` must hold a text. "
                raise FileFormatError(f"{told}Received: {text.short(found)}")
            yield found
            yield None

    def hold_out(self, fraction):
        """The text in two, the second at its end with that share of it, or as much as is looked at in one go."""
        wanted = max(self.first + 1, self.last - max(1, min(HELD, round(len(self) * fraction))))
        cut = self.align(wanted)
        if cut == self.first:  # no line begins behind it: the last line is held out
            cut = self._line_before(wanted)
        if cut == self.first and self.key is None:  # there is one line
            while wanted > self.first and self.read(wanted, 1)[0][0] & 0xC0 == 0x80:
                wanted -= 1
            cut = wanted
        if cut == self.first:
            raise InputError(
                f"{self.files[0].name} cannot be cut in two to hold out a part: give a part `valid`, or valid=0. "
                f"Received: valid={fraction}"
            )
        return self.part(self.first, cut), self.part(cut, self.last)

    def sample(self, size):
        """Texts from many places, about so many bytes together."""
        if size >= len(self):
            places, share = [self.first], len(self)
        else:
            places = [self.align(int(p)) for p in np.linspace(self.first, self.last, PIECES, endpoint=False)]
            share = size // PIECES
        found = []
        for at in places:
            length = 0
            for piece in filter(None, self.texts(at, max(share, LOOK), again=False)):
                found.append(piece[: share - length])
                length += len(found[-1].encode("utf-8"))
                if length >= share:
                    break
        return [f for f in found if f.strip()]


class Documents:
    """The texts of examples by number, as one long text: a place is a number of a document.

    Args:
        rows: Records by number and their length: `Rows`, or a list.
        first: The first document.
        last: The document after the last.
    """

    def __init__(self, rows, first=0, last=None):
        self.rows, self.first, self.last = rows, first, len(rows) if last is None else last

    def align(self, at):
        return at

    def texts(self, at, size=None, again=True):
        """Each document and None, from a number on; they go on at the beginning."""
        while True:
            for number in range(at, self.last):
                yield self.rows[number]["text"]
                yield None
            if not again:
                return
            at = self.first

    def sample(self, size):
        """Texts from all over, about so many characters together."""
        found = []
        for number in np.random.default_rng(0).permutation(np.arange(self.first, self.last)):
            found.append(self.rows[int(number)]["text"])
            size -= len(found[-1])
            if size <= 0:
                break
        return found

    def hold_out(self, fraction):
        """The documents in two, the second at the end with that share of them."""
        count = self.last - self.first
        cut = self.last - min(max(1, round(count * fraction)), count - 1)
        return Documents(self.rows, self.first, cut), Documents(self.rows, cut, self.last)


class LargeBatches:
    """Batches of windows at random places of a large text.

    Args:
        source: A `LargeText`.
        tokenizer: The tokenizer.
        make: From windows `(B, length)` and a NumPy generator to a batch.
        length: How many tokens a window has.
        stride: How many tokens after each other windows begin where the text is read in order.
        batch_size: How many windows B in a batch.
        seed: The same seed gives the same batches.
    """

    fixed, steps = True, None  # nobody knows how many tokens the text has

    def __init__(self, source, tokenizer, make, *, length, stride, batch_size, seed):
        self.source, self.tokenizer, self.make = source, tokenizer, make
        self.length, self.stride, self.batch_size, self.seed = length, stride, batch_size, seed
        known = source.sample(2**16)
        tokens = sum(len(tokenizer.encode(t)) for t in known)
        if not tokens:
            raise InputError("The text has no token of the tokenizer.")
        self.ratio = sum(map(len, known)) / tokens  # characters per token

    def tokens(self, at, again=True):
        """The tokens from a place on, some at a time."""
        end = [] if self.tokenizer.end_id is None else [self.tokenizer.end_id]
        wanted = int(self.length * self.ratio * 1.3) + 64
        size = max(LOOK, 2 * wanted)
        for piece in self.source.texts(at, size, again):
            if piece is None:
                yield end
                continue
            while piece:  # no more is encoded than is used; it is cut at a space
                cut = len(piece) if len(piece) <= wanted else piece.rfind(" ", 1, wanted) + 1 or wanted
                yield self.tokenizer.encode(piece[:cut]) if piece[:cut].strip() or self.ratio <= 1 else []
                piece = piece[cut:]

    def window(self, at):
        """The tokens of one window from a place on."""
        found: list[int] = []
        for tokens in self.tokens(self.source.align(at)):
            found += tokens
            if len(found) >= self.length:
                return np.array(found[: self.length], "int32")

    def at(self, step):
        """The batch of a step."""
        rng = np.random.default_rng([self.seed, step])
        places = rng.integers(self.source.first, self.source.last, self.batch_size)
        return self.make(np.stack([self.window(int(at)) for at in places]), rng)

    def run(self, start=0):
        """The batches from a step on, without end."""
        return (self.at(step) for step in itertools.count(start))

    def windows(self):
        """All windows in order; what is left at the end does not fill one."""
        rest: list[int] = []
        for tokens in self.tokens(self.source.first, again=False):
            rest += tokens
            while len(rest) >= self.length:
                yield np.array(rest[: self.length], "int32")
                rest = rest[self.stride :]

    @functools.cached_property
    def passes(self):
        """How many batches `once` has, or None where counting them would take long."""
        if self.source.last - self.source.first > HELD:
            return None
        return -(-sum(1 for _ in self.windows()) // self.batch_size)

    def once(self):
        """Every window once, in order."""
        windows = self.windows()
        for number in itertools.count():
            rows = list(itertools.islice(windows, self.batch_size))
            if not rows:
                return
            yield self.make(np.stack(rows), np.random.default_rng([self.seed, GIVEN, number]))


def windows_as_they_come(records, tokenizer, length, stride, buffer):
    """Lists of at most `buffer` windows of documents joined, for what cannot be read at a chosen place."""
    rest: list[int] = []
    found: list = []
    for record in records:
        rest += tokenizer.encode(record["text"])
        rest += [] if tokenizer.end_id is None else [tokenizer.end_id]
        at = 0
        while len(rest) - at >= length:
            found.append(np.array(rest[at : at + length], "int32"))
            at += stride
            if len(found) == buffer:
                yield found
                found = []
        rest = rest[at:]
    if found:
        yield found
