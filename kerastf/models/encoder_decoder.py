"""What the families that read one sequence and write another share. Shapes: B batch, S source, T target, V vocabulary.

Their inputs are a dict: `{"source": (B, S), "target": (B, T)}`, the target shifted right behind a start token; the
labels are the target itself with its end token.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from kerastf import decoding, text
from kerastf.errors import InputError
from kerastf.models.base import Model


class EncoderDecoder(Model):
    """A model with a source and a target. A family gives `init_state(batch_size, max_length, source)` and `step`."""

    @classmethod
    def complete(cls, options):
        """The tokenizers bring sizes and special tokens; without its own, the source has the target's."""
        source = text.from_config(options["source_tokenizer"])
        options = super().complete(options)
        target = text.from_config(options["tokenizer"])
        if source is not None:
            options["source_tokenizer"] = source.get_config()
        source = source or target
        for name in ("start_id", "end_id"):
            if options[name] is None and target is not None:
                options[name] = getattr(target, name)
        for name in ("vocab_size", "pad_id"):
            if options[f"source_{name}"] is None:
                options[f"source_{name}"] = options[name] if source is None else getattr(source, name)
        return options

    @classmethod
    def problems(cls, options):
        found = cls.size_problems(options, "vocab_size", "source_vocab_size", "max_length", "dim", "num_layers")
        size = options["vocab_size"]
        for name in ("start_id", "end_id"):
            if options[name] is not None and size is not None and not 0 <= options[name] < size:
                found.append(f"`{name}` must be a token in [0, {size}). Received: {name}={options[name]}")
        return found

    @classmethod
    def example_inputs(cls, options, batch_size, length, rng):
        size = options.get("source_vocab_size") or options["vocab_size"]
        target = super().example_inputs(options, batch_size, length, rng)["tokens"]
        source = rng.integers(3, size, (batch_size, length + 1)).astype("int32")
        return {"source": source, "target": target}

    @classmethod
    def typical_shapes(cls, options, batch_size, length=None):
        shape = super().typical_shapes(options, batch_size, length)["target"]
        return {"source": shape, "target": shape}

    @staticmethod
    def make_inputs():
        """The two inputs of the graph."""
        return {
            "source": keras.Input((None,), dtype="int32", name="source"),  # (B, S)
            "target": keras.Input((None,), dtype="int32", name="target"),  # (B, T)
        }

    def kept(self, tokens, name="pad_id"):
        """The mask of the positions that are not padding, or None."""
        start = self.options["start_id"] if name == "pad_id" else None
        return not_padding(tokens, self.options[name], start)

    def check_data(self, x, y):
        if not isinstance(x, dict) or set(x) != {"source", "target"}:
            if isinstance(x, np.ndarray):
                raise InputError(
                    "The input is a dict of the two sequences: fit({'source': ..., 'target': ...}, labels). "
                    f"Received: an array of shape {x.shape}"
                )
            return
        limit = getattr(self, "max_length", None)
        self.check_tokens(x["target"], y, self.options["vocab_size"], limit)
        self.check_tokens(x["source"], None, self.options["source_vocab_size"], limit)

    def generate(
        self, source, *, max_length=None, sampler="greedy", seed=None, num_beams=1, length_penalty=1.0,
        return_beams=False,
    ):  # fmt: skip
        """Writes the target of each source, token by token, until the end token.

        Args:
            source: A string or a list of strings (the model needs tokenizers then), or tokens: one list, a list of
                lists, or an array. Sources may differ in length.
            max_length: Length at which a target ends at the latest; by default one less than the model's `max_length`,
                as the start token has a position, too.
            sampler: `"greedy"`, `"random"`, `"top_k"`, `"top_p"`, a plugin's, or a dict with name and options.
            seed: The same seed gives the same tokens.
            num_beams: More than one searches with that many beams instead of sampling.
            length_penalty: How far beam search compares by mean (1) rather than by sum (0) of log-probabilities.
            return_beams: Whether to return every beam with its score, best first.

        Returns:
            The target in the form of the source: a string, a list of strings, or lists of tokens, without start and
            end token. With `return_beams`, a list of `(target, score)` in its place.

        Raises:
            InputError: The source does not fit the model.
        """
        self.require_decoding()
        start, end, pad = (self.options[name] for name in ("start_id", "end_id", "pad_id"))
        if start is None or end is None:
            raise InputError(
                "The model does not know where a target starts and ends: build it with start_id and end_id."
            )
        rows, form = self._source_rows(source)
        most = self.options["max_length"] - 1
        length = most if max_length is None else max_length
        if getattr(self, "max_length", None) is not None and length > most:
            raise InputError(
                f"The model has {most + 1} positions, of which the start token takes one: a target has at most {most} "
                f"tokens. Received: max_length={max_length}"
            )
        shared = {"max_length": length + 1, "end_id": end, "pad_id": pad, "context": self._context(rows)}
        prompts = [[start]] * len(rows)
        if decoding.searches(num_beams, sampler, seed, beams_asked=return_beams):
            tokens, ends, scores = decoding.beam_search(
                self, prompts, num_beams=num_beams, length_penalty=length_penalty, **shared
            )
        else:
            tokens, ends = decoding.generate(self, prompts, sampler=sampler, seed=seed, **shared)
            tokens, ends, scores = tokens[:, None], ends[:, None], None
        beams = [
            [self._target(row[:n], form) for row, n in zip(*pair, strict=True)]
            for pair in zip(tokens, ends, strict=True)
        ]
        if return_beams:
            found: list[Any] = [list(zip(b, s.tolist(), strict=True)) for b, s in zip(beams, scores, strict=True)]
        else:
            found = [b[0] for b in beams]
        return found[0] if form in ("text", "row") else found

    def next_tokens(self, source, prefix="", k=3):
        """The most likely next tokens of a target, after a prefix of it.

        Args:
            source: A string, or a list of tokens.
            prefix: What of the target is there already, in the form of the source.
            k: How many.

        Returns:
            A list of `(token, probability)`, likeliest first; the token as text where there is a tokenizer.
        """
        rows, form = self._source_rows(source)
        written = self.tokenizer.encode(prefix) if form == "text" else list(prefix)
        inputs = {"source": ops.array(rows[:1]), "target": ops.array([[self.options["start_id"], *written]])}
        chances = ops.convert_to_numpy(ops.softmax(ops.cast(self(inputs)[0, -1], "float32")))
        best = np.argsort(-chances, kind="stable")[:k]
        label = self.tokenizer.label if self.tokenizer else int
        return [(label(int(n)), float(chances[n])) for n in best]

    @property
    def source_tokenizer(self):
        """The tokenizer of the source: its own, or the target's."""
        return text.from_config(self.options["source_tokenizer"]) or self.tokenizer

    def _source_rows(self, source):
        return self.token_rows(source, self.source_tokenizer, self.options["source_vocab_size"])

    def _context(self, rows):
        """The sources in one array; its width is a multiple of 8, so that few shapes are compiled."""
        longest = max(len(r) for r in rows)
        width = -(-longest // 8) * 8
        limit = getattr(getattr(self, "source_position", None), "max_length", None)
        if limit is not None:  # learned positions: a source that fits must not be padded beyond them
            width = max(longest, min(width, limit))
        pad = self.options["source_pad_id"]
        if pad is None:
            if len({len(r) for r in rows}) > 1:
                raise InputError("Sources of different lengths need a padding token: build the model with pad_id=...")
            width, pad = len(rows[0]), 0
        array = np.full((len(rows), width), pad, dtype="int32")
        for line, row in zip(array, rows, strict=True):
            line[: len(row)] = row
        return {"source": array}

    def _target(self, row, form):
        """One target without start and end token."""
        row = [int(n) for n in row[1:]]
        row = row[:-1] if row and row[-1] == self.options["end_id"] else row
        return self.tokenizer.decode(row) if form in ("text", "texts") else row


def not_padding(tokens, pad_id, start_id=None):
    """The mask `tokens != pad`, or None where nothing is padded.

    Where padding is also the token that a target starts with, the first position is kept.
    """
    if pad_id is None:
        return None
    mask = ops.not_equal(tokens, pad_id)
    if start_id != pad_id:
        return mask
    return ops.concatenate([ops.ones_like(mask[:, :1]), mask[:, 1:]], axis=1)
