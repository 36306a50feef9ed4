"""One small training per family, with batches whose padding is uneven, and a feed that gives each worker its rows."""

import keras
import numpy as np

import kerastf

ROWS, LENGTH, STEPS = 8, 10, 50


class Feed:
    """Batches that are all at hand; `dataset` has the form that `kerastf.training.distribute` asks for."""

    def __init__(self, batches):
        self.batches = batches

    def dataset(self, start=0, shard=(0, 1)):
        import tensorflow as tf

        index, count = shard
        arrays = keras.tree.map_structure(lambda *a: np.stack(a), *self.batches)  # (steps, B, ...)
        rows = keras.tree.map_structure(lambda a: np.array_split(a, count, axis=1)[index][start:], arrays)
        return tf.data.Dataset.from_tensor_slices(rows)


def lengths(rng):
    """Short rows first, so that the first replica has the fewest tokens."""
    return np.sort(rng.integers(2, LENGTH + 1, ROWS))


def padded(rng, vocab_size, length):
    tokens = rng.integers(3, vocab_size, (ROWS, LENGTH)).astype("int32")
    tokens[np.arange(LENGTH) >= length[:, None]] = 0
    return tokens


def gpt(rng, dropout):
    def make():
        return kerastf.create_model(
            "gpt", vocab_size=20, max_length=LENGTH, dim=16, num_layers=1, num_heads=2, pad_id=0, dropout=dropout
        )

    def batch():
        tokens = padded(rng, 20, lengths(rng))
        return tokens, np.pad(tokens[:, 1:], ((0, 0), (0, 1)))

    return make, batch


def bert(rng, dropout):
    def make():
        return kerastf.create_model(
            "bert", vocab_size=20, max_length=LENGTH, dim=16, num_layers=1, num_heads=2, pad_id=0, dropout=dropout,
            head="pretraining",
        )  # fmt: skip

    def batch():
        length = lengths(rng)
        tokens = padded(rng, 20, length)
        positions = rng.integers(0, LENGTH, (ROWS, 4)).astype("int32")
        hidden = np.take_along_axis(tokens, positions, axis=1)
        inputs = {"tokens": tokens, "segments": np.zeros_like(tokens), "masked_positions": positions}
        targets = {"masked_tokens": np.where(hidden == 0, -1, hidden), "next_sentence": rng.integers(0, 2, ROWS)}
        return inputs, targets

    return make, batch


def transformer(rng, dropout):
    def make():
        return kerastf.create_model(
            "transformer",
            vocab_size=20,
            max_length=LENGTH,
            dim=16,
            num_layers=1,
            num_heads=2,
            pad_id=0,
            dropout=dropout,
        )

    def batch():
        length = lengths(rng)
        source, target = padded(rng, 20, length), padded(rng, 20, length)
        return {"source": source, "target": target}, np.pad(target[:, 1:], ((0, 0), (0, 1)))

    return make, batch


def vit(rng, dropout):
    def make():
        return kerastf.create_model(
            "vit", image_size=8, patch_size=4, channels=1, dim=16, num_layers=1, num_heads=2, dropout=dropout,
            head={"name": "classifier", "num_classes": 3},
        )  # fmt: skip

    def batch():
        images = rng.normal(size=(ROWS, 8, 8, 1)).astype("float32")
        weights = rng.uniform(0.1, 2, ROWS).astype("float32")
        return images, rng.integers(0, 3, ROWS), weights

    return make, batch


FAMILIES = {"gpt": gpt, "bert": bert, "transformer": transformer, "vit": vit}


def case(family, *, steps=STEPS, dropout=0.0):
    """A function that makes and compiles the model, always with the same weights, and its feed."""
    make, batch = FAMILIES[family](np.random.default_rng(0), dropout)

    def model():
        keras.utils.set_random_seed(0)
        made = make()
        # A norm that is reached: it must be that of the whole batch. The bias of attention's keys has no influence, so
        # that its gradient is rounding; a smaller epsilon would blow it up to steps of the whole rate.
        made.compile(keras.optimizers.AdamW(1e-3, weight_decay=0.01, epsilon=1e-6, global_clipnorm=0.2))
        return made

    return model, Feed([batch() for _ in range(steps)])


def train(strategy, family, *, steps=STEPS, dropout=0.0):
    """Trains under a strategy and gives the model, its weights by path, and the loss."""
    from kerastf import training

    make, feed = case(family, steps=steps, dropout=dropout)
    with strategy.scope():
        model = make()
    before = weights(model)
    data = training.distribute(strategy, feed)
    loss = model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0).history["loss"][-1]
    after = weights(model)
    moved = max(np.abs(after[p] - before[p]).max() for p in after)
    return model, after, loss, moved


def weights(model):
    return {w.path: keras.ops.convert_to_numpy(w).copy() for w in model.trainable_variables}


def distance(a, b):
    """The largest difference between two sets of weights."""
    return max(float(np.abs(a[path] - b[path]).max()) for path in a)
