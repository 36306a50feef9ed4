"""Word2vec: vectors of words, learnt from which words stand near each other.

Shapes: B batch, T centres in a row, S = T + 2 W tokens with W on both sides, C channels, V vocabulary, K draws.
"""

import contextlib
import functools
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from kerastf import compat, config, fitting, functional, replicas, text, vectors
from kerastf.config import create_block
from kerastf.errors import InputError
from kerastf.models.base import Model
from kerastf.registry import did_you_mean, nearest, register

LEARNING_RATE = 0.1


@register("model", "word2vec")
class Word2Vec(Model):
    """Vectors of words, by skip-gram or continuous bag of words.

    Each word w has an input vector `u_w` and an output vector `v_w`. With `s` the logistic function and k words n drawn
    with probability `count_n^0.75 / sum`, skip-gram learns from each word c and each word o in its window

    `loss = -log s(u_c . v_o) - sum_n log s(-u_c . v_n)`

    and the bag of words predicts the word in the middle, with the mean of the `u` of its window in place of `u_c`.

    `fit(data.windows(...))` trains from windows. There, the T words of a row share T drawn words, each counted `k / T`
    times: the same on average, in a few matrix products. `fit(words, neighbours)` trains from pairs, with the exact
    mean over all draws.

    Args:
        vocab_size: How many words V there are; by default the tokenizer's.
        dim: Width C of a vector.
        mode: `"skip_gram"`, or `"cbow"` for the bag of words.
        counts: How often each word occurs, for the draws; by default the tokenizer's.
        pad_id: Token that stands for padding; it has no part in a bag of words. By default the tokenizer's.
        embedding: Slot; the input vectors.
        head: Slot; the output vectors and the loss: `"negative_sampling"`, or `"language_model"` for a full softmax,
            which suits a small vocabulary.
        tokenizer: A tokenizer that travels with the model and gives its words names; or None.
        dtype: Name of a Keras dtype policy; None for the global one.
        name: Name of the model.

    Call arguments:
        tokens: Integer tensor of shape `(B, T)`: words, or for `"cbow"` one bag of words per row.

    Returns:
        What the head returns, scores of all words as neighbours: `(B, T, V)`, for `"cbow"` `(B, V)`.

    Examples:
        >>> import kerastf
        >>> from kerastf import data, text
        >>> tokenizer = text.train("word", ["the cat sat", "the dog sat"], special_tokens=())
        >>> model = kerastf.create_model("word2vec", tokenizer=tokenizer, dim=8)
        >>> model.compile()
        >>> history = model.fit(data.windows(["the cat sat", "the dog sat"], tokenizer), verbose=0)
        >>> [word for word, cosine in sorted(model.nearest("cat", k=3))]
        ['dog', 'sat', 'the']

    References:
        - [Mikolov et al., 2013](https://arxiv.org/abs/1301.3781) for both modes
        - [Mikolov et al., 2013](https://arxiv.org/abs/1310.4546) for negative sampling and subsampling
    """

    slots = {"embedding": False, "head": False}  # noqa: RUF012

    def __init__(
        self, vocab_size: int | None = None, *, dim: int = 100, mode: Literal["skip_gram", "cbow"] = "skip_gram",
        counts: list[int] | None = None, pad_id: int | None = None, embedding: Any = "token",
        head: Any = "negative_sampling", tokenizer: text.Tokenizer | dict | str | None = None,
        dtype: str | None = None, name: str | None = None,
    ):  # fmt: skip
        plan = config.plan(type(self), {k: v for k, v in locals().items() if k in config.options_of(type(self))})
        options, blocks = plan.options, plan.blocks
        dtype = keras.dtype_policies.get(options["dtype"])

        # === Layers ===
        embedding = create_block("embedding", blocks["embedding"][0], name="embedding", dtype=dtype)
        head = create_block("head", blocks["head"][0], name="head", dtype=dtype)
        if getattr(head, "tied", False):
            head.tie(embedding)

        # === Graph ===
        tokens = keras.Input((None,), dtype="int32", name="tokens")  # (B, T)
        mask = None if options["pad_id"] is None else ops.not_equal(tokens, options["pad_id"])  # (B, T)
        x = embedding(tokens)  # (B, T, C)
        if options["mode"] == "cbow":
            outputs = head(functional.mean_kept(x, mask)[:, None])[:, 0]  # (B, V)
        else:
            outputs = head(x, mask=mask)  # (B, T, V)
        super().__init__(inputs=tokens, outputs=outputs, plan=plan, head=head, name=options["name"])
        self.embedding = embedding
        self._from_windows = False

    @classmethod
    def problems(cls, options):
        found = cls.size_problems({**options, "dropout": 0.0}, "vocab_size", "dim")
        if not found and options["vocab_size"] < 2:
            found.append(
                f"A word is told from its neighbours by at least one other word, so `vocab_size` must be at least 2. "
                f"Received: vocab_size={options['vocab_size']}"
            )
        head = options["head"]["name"] if isinstance(options["head"], dict) else options["head"]
        given = isinstance(options["head"], dict) and options["head"].get("counts")
        if head == "negative_sampling" and not given and cls._counts(options) is None:
            found.append(
                "Negative sampling draws words by their `counts`. Give a tokenizer that has them, as "
                "text.train('word', ...) makes it, or counts=[...]. Received: counts=None"
            )
        return found

    @classmethod
    def _counts(cls, options):
        tokenizer = text.from_config(options["tokenizer"])
        return getattr(tokenizer, "counts", None) if options["counts"] is None else options["counts"]

    @classmethod
    def facts(cls, options):
        # As word2vec starts: evenly within 0.5 / C. The output vectors start at 0.
        start = {"initializer": "uniform", "initializer_std": 0.5 / options["dim"] / 3**0.5}
        return {**options, **start, "counts": cls._counts(options), "tied": False}

    def example_targets(self, inputs, rng):
        shape = inputs["tokens"].shape[: 1 if self.options["mode"] == "cbow" else 2]
        return self.head.example_targets((*shape, self.options["dim"]), rng)

    # --- training

    def compile(self, optimizer=None, loss=None, *, metrics=None, **kwargs):
        """Keras's `compile`; without arguments, the head's loss and Adagrad, which suits words of all frequencies.

        Args:
            optimizer: A Keras optimizer or its name. With Adagrad, the default, an update on TensorFlow touches only
                the words of its batch; others may go over the whole vocabulary in each step.
            loss: A Keras loss for training from pairs; None for the head's.
            metrics: Keras metrics for training from pairs.
            **kwargs: As for `keras.Model.compile`.
        """
        if optimizer is None:
            # Gradients of a mean over many pairs are small, so nothing may be added to their squares.
            optimizer = keras.optimizers.Adagrad(LEARNING_RATE, initial_accumulator_value=0.0, epsilon=1e-16)
        if keras.backend.backend() == "tensorflow":
            kwargs.setdefault("steps_per_execution", 16)  # a step is short
            kwargs.setdefault("jit_compile", False)  # sparse updates cannot be compiled by XLA
        super().compile(optimizer, loss, metrics=[] if metrics is None else metrics, **kwargs)
        if not metrics:
            compat.forget_metrics(self)

    @functools.wraps(keras.Model.fit)
    def fit(self, x=None, y=None, *args, **kwargs):
        kwargs.setdefault("shuffle", isinstance(x, np.ndarray))  # Keras warns of a data set that it cannot shuffle
        if self.compiled and self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)  # `adagrad_rows` needs its accumulators
        return super().fit(x, y, *args, **kwargs)

    def check_data(self, x, y):
        if self.options["mode"] == "skip_gram":
            self.check_tokens(x, y, self.options["vocab_size"])
        else:
            self.check_tokens(x, None, self.options["vocab_size"])

    def train_step(self, *arguments):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(arguments[-1])
        windows = _are_windows(y)
        if windows and self._updates_rows():
            loss = fitting.adagrad_rows(lambda take: self._window_loss(x, y, take, fast=True), self.optimizer)
            self._loss_tracker.update_state(loss)
            return {"loss": self._loss_tracker.result()}
        with self._reading(windows):
            return super().train_step(*arguments)

    def test_step(self, *arguments):
        _, y, _ = keras.utils.unpack_x_y_sample_weight(arguments[-1])
        with self._reading(_are_windows(y)):
            return super().test_step(*arguments)

    @contextlib.contextmanager
    def _reading(self, windows):
        self._from_windows = windows
        try:
            yield
        finally:
            self._from_windows = False

    def call(self, inputs, training=None, mask=None):
        if self._from_windows:  # the loss reads the vectors it needs; scores of all words would be large
            return ops.zeros(())
        return super().call(inputs, training=training, mask=mask)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if _are_windows(y):
            return self._window_loss(x, y, lambda variable, rows: ops.take(variable, rows, axis=0))
        return super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)

    def _updates_rows(self):
        """Whether a step can read and change only the rows of its words."""
        blocks = (self.options["embedding"], self.options["head"])
        names = [b["name"] if isinstance(b, dict) else b for b in blocks]
        return names == ["token", "negative_sampling"] and fitting.can_update_rows(self)

    def _window_loss(self, tokens, reach, take, fast=False):
        """Mean loss per pair; a batch counts by the share of its centres that have a window.

        Args:
            tokens: `(B, S)`.
            reach: `(B, T, 2)`.
            take: From a variable and row numbers to those rows.
            fast: Whether to return something whose gradient is that of the loss, a factor to it, and the loss of an
                eighth of the rows: the loss itself costs more than its gradient.
        """
        span = (tokens.shape[1] - reach.shape[1]) // 2  # W
        middle = tokens[:, span : span + reach.shape[1]]  # (B, T)
        near = functional.near(reach, span)  # (B, T, S)
        count = ops.cast(ops.sum(reach, axis=-1), "float32")  # (B, T)
        x = ops.cast(take(self.embedding.matrix, tokens if self.options["mode"] == "cbow" else middle), "float32")
        if self.options["mode"] == "cbow":
            x = ops.matmul(near, x) / ops.maximum(count, 1)[..., None]  # (B, T, C)
            count = ops.cast(count > 0, "float32")
            true = ops.sum(x * take(self.head.matrix, middle), axis=-1)  # (B, T)
            weights = count
        else:
            rows = take(self.head.matrix, tokens)  # (B, S, C)
            true, weights = ops.matmul(x, ops.transpose(rows, (0, 2, 1))), near  # (B, T, S)
        filled = ops.cast(count > 0, "float32")
        share = replicas.total(ops.sum(filled)) / replicas.total(ops.sum(ops.ones_like(filled)))
        scale = share / ops.maximum(replicas.total(ops.sum(count)), 1)
        if not hasattr(self.head, "draw"):  # a full softmax
            scores = self.head(x)  # (B, T, V)
            total = ops.sum(count * ops.logsumexp(scores, axis=-1)) - ops.sum(weights * true)
            return total * scale
        draws = max(reach.shape[1], self.head.negatives)  # K
        drawn = take(self.head.matrix, self.head.draw((ops.shape(tokens)[0], draws)))  # (B, K, C)
        false = ops.matmul(x, ops.transpose(drawn, (0, 2, 1)))  # (B, T, K)
        scores = true, weights, false, count[..., None] * (self.head.negatives / draws)
        if not fast:
            return ops.sum(functional.logistic_losses(*scores)) * scale
        part = max(1, (tokens.shape[0] or 8) // 8)
        shown = ops.sum(functional.logistic_losses(*[s[:part] for s in scores]))
        shown = shown * share / ops.maximum(ops.sum(count[:part]), 1)
        return functional.logistic_slope(*scores), scale, shown

    # --- words

    @property
    def vectors(self):
        """The input vectors of the words, `(V, C)`, special tokens left out; a NumPy array."""
        count = self.tokenizer.ordinary if self.tokenizer else None
        return ops.convert_to_numpy(self.embedding.matrix).astype("float32")[:count]

    def vector(self, word):
        """The vector of a word, `(C,)`. Where the model has no tokenizer, a word is its number, here and below."""
        return self.vectors[self._number(word)]

    def nearest(self, word, k=10):
        """The words whose vectors point most nearly the same way.

        Args:
            word: A word, or a vector `(C,)`.
            k: How many.

        Returns:
            A list of `(word, cosine)`, nearest first, without the word itself.

        Raises:
            InputError: There is no such word; the message has the nearest spellings.
        """
        if isinstance(word, np.ndarray) and word.ndim == 1:
            return self._closest(word, k, [])
        number = self._number(word)
        return self._closest(self.vectors[number], k, [number])

    def similarity(self, a, b):
        """The cosine of two words' vectors."""
        a, b = (vectors.normalised(self.vector(w)) for w in (a, b))
        return float(a @ b)

    def analogy(self, a, b, c, k=1):
        """What is to `c` as `b` is to `a`: the words nearest to `b - a + c`, those three left out.

        Returns:
            A list of k `(word, cosine)`, nearest first.
        """
        a, b, c = numbers = [self._number(w) for w in (a, b, c)]
        unit = vectors.normalised(self.vectors)
        return self._closest(unit[b] - unit[a] + unit[c], k, numbers)

    def evaluate_analogies(self, path, restrict=None):
        """Answers the questions of an analogy file, such as word2vec's `questions-words.txt`.

        Args:
            path: A text file with lines `: section` and `a b c d`.
            restrict: Only the first so many words of the vocabulary, the most frequent ones, are known; None for all.

        Returns:
            A dict with `accuracy`, `right`, `asked`, `skipped` (a question with an unknown word) over all sections, and
            `sections`, by name a dict of the same four.
        """
        unit = vectors.normalised(self.vectors[:restrict])
        sections = {}
        for name, questions in vectors.read_questions(path).items():
            numbers = [[self._find(w) for w in q] for q in questions]
            known = np.array([q for q in numbers if all(n is not None and n < len(unit) for n in q)], "int64")
            right = int(np.sum(vectors.answer(unit, known[:, :3]) == known[:, 3])) if len(known) else 0
            sections[name] = _score(right, len(known), len(questions) - len(known))
        totals = [sum(s[key] for s in sections.values()) for key in ("right", "asked", "skipped")]
        return {**_score(*totals), "sections": sections}

    def save_word2vec(self, path, binary=False):
        """Writes the vectors in the format of word2vec, which gensim's `KeyedVectors.load_word2vec_format` reads.

        Args:
            path: The file.
            binary: Whether numbers are written as bytes rather than as text.
        """
        rows = self.vectors
        names = [self.tokenizer.label(n) if self.tokenizer else str(n) for n in range(len(rows))]
        vectors.write_word2vec(path, names, rows, binary=binary)

    def _closest(self, query, k, exclude):
        if k < 1:
            raise InputError(f"`k` must be at least 1. Received: k={k}")
        unit = vectors.normalised(self.vectors)
        exclude = np.array([sorted(set(exclude))], "int64")
        (found,), (cosines,) = vectors.closest(unit, query[None], k, exclude)
        return [(self.tokenizer.label(int(n)) if self.tokenizer else int(n), float(s))
                for n, s in zip(found, cosines, strict=True)]  # fmt: skip

    def _find(self, word):
        """The number of a word, or None."""
        if not isinstance(word, str):
            size = self.tokenizer.ordinary if self.tokenizer else self.options["vocab_size"]
            return int(word) if isinstance(word, int | np.integer) and 0 <= word < size else None
        numbers = self.tokenizer.encode_known(word) if self.tokenizer else []
        return numbers[0] if len(numbers) == 1 and numbers[0] < self.tokenizer.ordinary else None

    def _number(self, word):
        found = self._find(word)
        if found is not None:
            return found
        if self.tokenizer is None:
            raise InputError(
                f"The model has no tokenizer, so a word is its number in [0, {self.options['vocab_size']}). "
                f"Received: word={word!r}"
            )
        names = getattr(self.tokenizer, "words", ())
        raise InputError(
            f"The model has no word {word!r} among its {self.tokenizer.ordinary}."
            f"{did_you_mean(nearest(str(word), names))}"
        )


def _are_windows(targets):
    return hasattr(targets, "shape") and len(targets.shape) == 3  # some heads have a dict of targets


def _score(right, asked, skipped):
    return {"accuracy": right / max(asked, 1), "right": right, "asked": asked, "skipped": skipped}
