"""Checks on logical CPU devices, in a process of their own because devices are made before TensorFlow is used.

Usage: python mirrored.py CHECK ...   where a check is losses, seeds, planted or FAMILY:REPLICAS; `added` is a family, too.
Prints JSON.
"""

import contextlib
import json
import sys
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kerastf import training

FOUR, TWO, ONE = training.strategy("cpu:4"), training.strategy("cpu:2"), training.strategy("cpu")

import cases  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import kerastf  # noqa: E402
from kerastf import replicas  # noqa: E402
from kerastf.blocks import bilm, head, sampling, span  # noqa: E402


@kerastf.register("feedforward", "costly", supports=("causal",))
class Costly(keras.layers.Layer):
    """A linear map whose square is added to the loss."""

    def build(self, x_shape):
        self.kernel = self.add_weight(shape=(x_shape[-1], x_shape[-1]), name="kernel")

    def call(self, x):
        y = keras.ops.matmul(x, self.kernel)
        self.add_loss(keras.ops.mean(keras.ops.square(y)))
        return y

    def compute_output_shape(self, x_shape):
        return x_shape


def added(rng, dropout):
    """A model whose layers add to the loss."""
    _, batch = cases.gpt(rng, dropout)

    def make():
        return kerastf.create_model(
            "gpt", vocab_size=20, max_length=cases.LENGTH, dim=16, num_layers=2, num_heads=2, pad_id=0,
            dropout=dropout, feedforward="costly",
        )  # fmt: skip

    return make, batch


cases.FAMILIES["added"] = added


def on_replicas(strategy, function, *arrays):
    """The results of a function on each replica's rows."""
    count = strategy.num_replicas_in_sync
    parts = [keras.tree.map_structure(lambda a, i=i: np.array_split(a, count)[i], arrays) for i in range(count)]
    given = strategy.experimental_distribute_values_from_function(
        lambda context: keras.tree.map_structure(tf.constant, parts[context.replica_id_in_sync_group])
    )
    found = tf.function(lambda: strategy.run(lambda x: function(*x), args=(given,)), autograph=False)()
    return [float(v) for v in strategy.experimental_local_results(found)]


def losses():
    """For each loss: one device's, and the sum over two replicas of which one has far fewer tokens; with weights."""
    rng = np.random.default_rng(0)
    labels = rng.integers(1, 5, (8, 6))
    labels[:4, 1:] = 0
    weights = rng.uniform(0.1, 2, 8).astype("float32")
    scores = rng.normal(size=(8, 6, 5)).astype("float32")
    every = {
        "token": (head.TokenCrossEntropy(0), labels, scores),
        "smooth": (head.TokenCrossEntropy(0, label_smoothing=0.1), labels, scores),
        "row": (head.RowCrossEntropy(), labels[:, 0], scores[:, 0]),
        "span": (span.SpanCrossEntropy(0), labels[:, :2], scores[..., :2]),
        "two_way": (bilm.TwoWayCrossEntropy(0), labels, np.stack([scores, scores], axis=2)),
        "negative_sampling": (sampling.NegativeSamplingLoss([0.2] * 5, ignore=0), labels, scores),
    }
    found = {}
    for name, (loss, y, x) in every.items():
        rows = 5 if name == "row" else 8  # five give one replica more rows than the other
        one = float(loss(y[:rows], x[:rows], weights[:rows]))
        found[name] = one - sum(on_replicas(TWO, loss, y[:rows], x[:rows], weights[:rows]))
    with planted("total", lambda x: x):
        local = one - sum(on_replicas(TWO, loss, y, x, weights))
    return {"off": found, "off with a local mean": local}


@contextlib.contextmanager
def planted(name, function):
    """Within the block, a function of `replicas` is another one."""
    before = getattr(replicas, name)
    setattr(replicas, name, function)
    try:
        yield
    finally:
        setattr(replicas, name, before)


def units(dropped=0.5):
    """Which units two replicas drop, in three steps, with the mends."""
    with TWO.scope():
        layer = keras.layers.Dropout(dropped, seed=3)
        layer.build((None, 64))
    model = types.SimpleNamespace(distribute_strategy=TWO, optimizer=None)  # what `mended` looks at
    step = tf.function(lambda: TWO.run(lambda: layer(tf.ones((1, 64)), training=True)), autograph=False)
    with replicas.mended(model):
        drawn = [[v.numpy().ravel().tolist() for v in TWO.experimental_local_results(step())] for _ in range(3)]
    return drawn, [v.numpy().tolist() for v in TWO.experimental_local_results(layer.seed_generator.state.value)]


def seeds():
    drawn, states = units()

    def same(a, b):
        return bool(np.array_equal(a, b))

    with planted("_next_of_replica", lambda next_seed: next_seed):
        plain, _ = units()
    return {
        "replicas differ": not any(same(a, b) for a, b in drawn),
        "steps differ": not same(drawn[0], drawn[1]),
        "reproducible": same(drawn, units()[0]),
        "states equal": same(*states),
        "first as one": same([a for a, _ in drawn], [a for a, _ in plain]),
        "keras alone: replicas equal": all(same(a, b) for a, b in plain),
        "put back": keras.random.SeedGenerator.next.__name__ == "next" and not replicas._running,
    }


def mistakes():
    """How far five steps are off with a mistake in them."""
    right = cases.train(ONE, "gpt", steps=5)[1]
    found = {"none": cases.distance(right, cases.train(TWO, "gpt", steps=5)[1])}
    with planted("total", lambda x: x):
        found["local mean"] = cases.distance(right, cases.train(TWO, "gpt", steps=5)[1])
    with planted("_losses_of_replica", lambda layer: ()):
        added = [cases.train(strategy, "added", steps=5)[1] for strategy in (ONE, TWO)]
        found["added losses of another replica"] = cases.distance(*added)
    with planted("mended", lambda model: contextlib.nullcontext()):
        found["clipped before adding up"] = cases.distance(right, cases.train(TWO, "gpt", steps=5)[1])
    return found


def proof(family, count):
    _, right, loss, moved = cases.train(ONE, family)
    _, weights, other, _ = cases.train({1: ONE, 2: TWO, 4: FOUR}[count], family)
    return {"distance": cases.distance(right, weights), "loss": loss - other, "moved": float(moved)}


def main():
    checks = {"losses": losses, "seeds": seeds, "planted": mistakes}
    for name in sys.argv[1:]:
        family, _, count = name.partition(":")
        print("found", json.dumps({name: checks[name]() if name in checks else proof(family, int(count))}), flush=True)


if __name__ == "__main__":
    main()
