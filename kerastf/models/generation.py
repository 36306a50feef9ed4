"""What a model writes: `generate` and what it needs."""

import keras
import numpy as np
from keras import ops

from kerastf import config, decoding, registry
from kerastf.errors import InputError
from kerastf.models import saved


class Generation(keras.Model):
    """The part of a model that continues prompts."""

    def generate(
        self, prompt, *, max_length=None, sampler="greedy", seed=None, num_beams=1, length_penalty=1.0, end_id=None
    ):  # fmt: skip
        """Continues a prompt.

        Args:
            prompt: A string or a list of strings (the model needs a tokenizer then), or tokens: one list, a list of
                lists, or an array. Prompts may differ in length.
            max_length: Length at which a row ends, prompt included; by default all positions of the model.
            sampler: `"greedy"`, `"random"`, `"top_k"`, `"top_p"`, a plugin's, or a dict with name and options.
            seed: The same seed gives the same tokens.
            num_beams: More than one searches with that many beams instead of sampling.
            length_penalty: How far beam search compares by mean (1) rather than by sum (0) of log-probabilities.
            end_id: A row stops after this token; by default the tokenizer's end token.

        Returns:
            The prompt with its continuation, in the form of the prompt: a string, a list of strings, or tokens as a
            NumPy array (`(T,)` for one list, else `(B, T)` filled up after the end).

        Raises:
            InputError: The model cannot decode, or the prompt does not fit it.
        """
        self.require_decoding()
        rows, form = self.token_rows(prompt, self.tokenizer, self.options["vocab_size"])
        limit = self.options["max_length"] if max_length is None else max_length
        end_id = self.tokenizer.end_id if end_id is None and self.tokenizer else end_id
        shared = {"max_length": limit, "end_id": end_id, "pad_id": self.options["pad_id"]}
        if decoding.searches(num_beams, sampler, seed):
            tokens, ends, _ = decoding.beam_search(
                self, rows, num_beams=num_beams, length_penalty=length_penalty, **shared
            )
            tokens, ends = tokens[:, 0], ends[:, 0]
        else:
            tokens, ends = decoding.generate(self, rows, sampler=sampler, seed=seed, **shared)
        if form == "tokens":
            return tokens
        if form == "row":
            return tokens[0, : ends[0]]
        texts = [self.tokenizer.decode(row[:end]) for row, end in zip(tokens, ends, strict=True)]
        return texts[0] if form == "text" else texts

    def next_tokens(self, prompt, k=3):
        """The most likely next tokens after a prompt.

        Args:
            prompt: A string (the model needs a tokenizer then), or a list of tokens.
            k: How many.

        Returns:
            A list of `(token, probability)`, likeliest first; the token as text where there is a tokenizer.
        """
        self.require_decoding()
        rows, _ = self.token_rows(prompt, self.tokenizer, self.options["vocab_size"])
        logits = self(ops.array(rows[:1], dtype="int32"))[0, -1]
        chances = ops.convert_to_numpy(ops.softmax(ops.cast(logits, "float32")))
        best = np.argsort(-chances, kind="stable")[:k]
        label = self.tokenizer.label if self.tokenizer else int
        return [(label(int(n)), float(chances[n])) for n in best]

    def require_decoding(self):
        """Raises `InputError` where the head or an attention cannot decode step by step."""
        lacking = []
        if "decode" not in self.head.supports:
            lacking.append(f"the head `{self.head.registry_entry.id}`")
        for slot in [s for s in self.slots if config.slot_kind(s) == "attention"]:
            blocks = saved.blocks_in(self, slot)
            for id in dict.fromkeys(b["name"] for b in blocks):
                if "decode" not in registry.resolve("attention", id).supports:
                    lacking.append(f"the attention `{id}`")
        if lacking:
            raise InputError(f"This model cannot generate: {' and '.join(lacking)} cannot decode step by step.")

    def token_rows(self, prompt, tokenizer, vocab_size):
        """The prompt as a list of lists of tokens, and the form it came in."""
        if isinstance(prompt, str) or (isinstance(prompt, list | tuple) and any(isinstance(p, str) for p in prompt)):
            if tokenizer is None:
                raise InputError(
                    "The model has no tokenizer, so a prompt is a list of tokens. Build it with tokenizer=... to use "
                    f"text. Received: prompt={prompt!r}"
                )
            texts = [prompt] if isinstance(prompt, str) else list(prompt)
            rows, form = (
                [tokenizer.encode(t) for t in texts],
                "text" if isinstance(prompt, str) else "texts",
            )
        else:
            rows, form = _token_rows(prompt)
        if not rows or any(len(r) == 0 for r in rows):
            raise InputError(f"Each prompt needs at least one token. Received: prompt={prompt!r}")
        for row in rows:
            wrong = [n for n in row if not 0 <= n < vocab_size]
            if wrong:
                raise InputError(f"Tokens must be in [0, {vocab_size}). Received: {wrong[0]}")
        return rows, form


def _token_rows(prompt):
    try:
        ragged = [np.asarray(p) for p in prompt]
    except TypeError:
        raise InputError(f"A prompt is a string, a list of strings, or tokens. Received: prompt={prompt!r}") from None
    if any(a.dtype.kind not in "iu" for a in ragged if a.size):
        raise InputError(f"Tokens are integers. Received: prompt={prompt!r}")
    if ragged and all(a.ndim == 0 for a in ragged):
        return [[int(n) for n in ragged]], "row"
    if any(a.ndim != 1 for a in ragged):
        raise InputError(f"Tokens are one list, or a list of lists. Received: prompt={prompt!r}")
    return [a.tolist() for a in ragged], "tokens"
