"""Costs beside TensorFlow's own profiler, formulas written by hand, published numbers, and planted mistakes."""

import contextlib
import inspect
import json
import os
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf import arithmetic, counting, registry, symbolic
from kerastf.errors import InputError

TENSORFLOW = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow's profiler reads its graphs"
)
SIZES = {
    "gpt": {"vocab_size": 1000, "max_length": 64, "dim": 128, "num_layers": 2, "num_heads": 4},
    "bert": {"vocab_size": 1000, "max_length": 64, "dim": 128, "num_layers": 2, "num_heads": 4},
    "vit": {"image_size": 64, "patch_size": 8, "dim": 128, "num_layers": 2, "num_heads": 4, "num_classes": 10},
    "transformer": {"vocab_size": 1000, "max_length": 64, "dim": 128, "num_layers": 2, "num_heads": 4, "start_id": 1, "end_id": 2},
    "conv_s2s": {"vocab_size": 1000, "max_length": 64, "dim": 128, "channels": 128, "num_layers": 2, "start_id": 1, "end_id": 2},
    "conv_lm": {"vocab_size": 1000, "max_length": 64, "dim": 128, "channels": 128, "num_layers": 2},
    "word2vec": {"vocab_size": 1000, "dim": 64, "counts": [1] * 1000},
}  # fmt: skip


def profiled(model, shapes):
    """What TensorFlow's profiler counts in the graph of one forward pass, with the weights as constants."""
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2_as_graph

    dtypes = {x.name: x.dtype for x in model.inputs}
    specs = {name: tf.TensorSpec(shape, dtypes[name]) for name, shape in shapes.items()}

    @tf.function(autograph=False)
    def forward(given):
        return model(given if len(given) > 1 else next(iter(given.values())), training=False)

    _, frozen = convert_variables_to_constants_v2_as_graph(forward.get_concrete_function(specs))
    profiler = tf.compat.v1.profiler
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(frozen, name="")
        options = profiler.ProfileOptionBuilder(profiler.ProfileOptionBuilder.float_operation())
        return profiler.profile(graph, cmd="op", options=options.with_empty_output().build()).total_float_ops


def require_agreement(model, cost):
    """Fails where we and the profiler are more than 1 % apart."""
    theirs = profiled(model, cost.inputs)
    assert abs(cost.flops / theirs - 1) < 0.01, (
        f"ours {cost.flops:,}, TensorFlow's {theirs:,}: {cost.flops / theirs:.4f}"
    )


@TENSORFLOW
@pytest.mark.parametrize("id", SIZES)
def test_as_the_profiler_counts(id):
    model = kerastf.create_model(id, **SIZES[id])
    cost = kerastf.cost(model, batch_size=2)
    assert not cost.missed
    require_agreement(model, cost)


@TENSORFLOW
@pytest.mark.parametrize("attention", ["linear_attention/linear", "cosine", "window", "luong"])
def test_other_blocks_as_the_profiler_counts(attention):
    value = {"name": "window", "window": 8} if attention == "window" else attention
    model = kerastf.create_model("gpt", **SIZES["gpt"], attention=value, norm="rms", feedforward="gated")
    require_agreement(model, kerastf.cost(model))


@TENSORFLOW
def test_a_keras_model_of_no_family():
    x = keras.Input((16, 16, 4), name="image")
    h = keras.layers.Conv2D(8, 3, strides=2, padding="same")(x)
    h = keras.layers.DepthwiseConv2D(3, padding="same")(h)
    h = keras.layers.SeparableConv2D(12, 3)(h)
    h = keras.layers.Reshape((-1, 12))(h)
    h = keras.layers.EinsumDense("abc,cd->abd", output_shape=(36, 32))(h)
    model = keras.Model(x, keras.layers.Dense(5)(keras.layers.Flatten()(h)))
    cost = kerastf.cost(model, batch_size=3)
    assert cost.inputs == {"image": (3, 16, 16, 4)} and cost.parameters == model.count_params() and not cost.missed
    require_agreement(model, cost)


# --- formulas by hand


def test_gpt_by_hand():
    layers, width, length, heads = 12, 768, 1024, 12
    cost = kerastf.cost("gpt.gpt2")
    # Two for each parameter but those of vectors, which are added, and of positions; the head reads the embedding.
    matrices = 12 * layers * width**2 + 50257 * width
    products = length * (2 * matrices + layers * 4 * length * width)  # scores and their means
    assert products < cost.flops < 1.006 * products
    dense = [row for row in cost.layers if row.layer == "Dense"]
    # Matrices, biases, and eight for each GELU of the wide vectors.
    assert sum(r.flops for r in dense) == length * layers * (24 * width**2 + (4 + 5) * width + 8 * 4 * width)
    scores = [row for row in cost.layers if row.layer == "MultiHead"]
    # Queries are scaled, then two products, and a softmax of five for each score.
    assert {r.flops for r in scores} == {length * width + 4 * length**2 * width + 5 * heads * length**2}
    # A rule of thumb: 2 N T and the attention.
    assert abs(cost.flops / (2 * 124e6 * length + layers * 4 * length**2 * width) - 1) < 0.02


def test_published():
    # timm says 17.58 G multiplications with additions for ViT-B/16, and 4.6 G for ViT-S/16, fc included.
    assert abs(kerastf.flops("vit.b16") / (2 * 17.58e9) - 1) < 0.01
    assert abs(kerastf.flops("vit.s16") / (2 * 4.61e9) - 1) < 0.02


@pytest.mark.parametrize(
    "cell, product, rest",
    # Per step and row: the product with the last output, and what is done to each unit.
    [
        ("simple", lambda u: 2 * u * u, lambda u: 2 * u),  # add, tanh
        ("lstm", lambda u: 2 * u * 4 * u, lambda u: (4 + 3 + 1 + 3 + 1 + 1) * u),  # add; gates, tanh; c: * * +; tanh, *
        ("gru", lambda u: 2 * u * 3 * u, lambda u: (2 + 2 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1) * u),
    ],
)  # fmt: skip
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_networks_by_hand(cell, product, rest, bidirectional):
    batch, length, width, units, vocabulary, gates = 3, 17, 24, 40, 50, {"simple": 1, "lstm": 4, "gru": 3}[cell]
    head = "language_model" if not bidirectional else {"name": "tagger", "num_classes": vocabulary}
    cost = kerastf.cost("rnn", vocab_size=vocabulary, dim=width, units=units, num_layers=1, cell=cell, head=head,
                        bidirectional=bidirectional, batch_size=batch, length=length)  # fmt: skip
    projection = 2 * width * gates * units + gates * units
    directions = 2 if bidirectional else 1
    loop = sum(row.flops for row in cost.layers if row.path.startswith("layer_0"))
    assert loop == directions * batch * length * (projection + product(units) + rest(units))
    out = 2 * directions * units * vocabulary + (vocabulary if bidirectional else 0)
    assert sum(row.flops for row in cost.layers if row.path.startswith("head")) == batch * length * out


def test_seq2seq_grows_with_both_lengths():
    def count(source, target):
        inputs = {"source": np.zeros((1, source), "int32"), "target": np.zeros((1, target), "int32")}
        return kerastf.cost("seq2seq.bahdanau", vocab_size=500, inputs=inputs).flops

    a, b, c, d = count(10, 10), count(20, 10), count(10, 20), count(20, 20)
    # Attention looks at all pairs: the corner that is left after both lengths is their product, U wide.
    units = 512
    pairs = d - b - c + a
    assert pairs % 100 == 0 and pairs / 100 > 3 * units
    assert count(30, 10) - b == b - a  # linear in the source


def test_layers_of_keras_by_hand():
    lstm = keras.layers.LSTM(8, return_sequences=True)
    lstm.build((None, 5, 4))
    cost = kerastf.cost(lstm, inputs=keras.KerasTensor((2, 5, 4)))
    # Per step and row: both products, their sum and the bias, three gates, tanh twice, and c and h.
    assert cost.flops == 2 * 5 * (2 * (4 + 8) * 32 + 2 * 32 + (3 + 2 + 4) * 8) and cost.parameters == (4 + 8 + 1) * 32
    attention = keras.layers.MultiHeadAttention(2, 8)
    x = keras.Input((6, 16))
    cost = kerastf.cost(keras.Model(x, attention(x, x)))
    assert not cost.missed
    products = 4 * 2 * 6 * 16 * 16 + 2 * 2 * 2 * 6 * 6 * 8
    assert products < cost.flops < 1.1 * products


def test_threads_do_not_disturb_each_other():
    found = []
    threads = [threading.Thread(target=lambda: found.append(kerastf.flops("gpt", **SIZES["gpt"]))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [kerastf.flops("gpt", **SIZES["gpt"])] * 3
    assert "__jax_array__" in vars(keras.KerasTensor) and "__array_ufunc__" not in vars(keras.KerasTensor)


def test_batches_are_proportional():
    one, four = (kerastf.cost("gpt", **SIZES["gpt"], batch_size=n) for n in (1, 4))
    assert four.flops == 4 * one.flops and four.activation_bytes == 4 * one.activation_bytes
    assert four.parameters == one.parameters


# --- loops


class Loops(keras.layers.Layer):
    """Ten products of a square matrix, by one of Keras's loops."""

    def __init__(self, by, **kwargs):
        super().__init__(**kwargs)
        self.by = by

    def build(self, x_shape):
        self.matrix = self.add_weight(shape=(x_shape[-1], x_shape[-1]), name="matrix")

    def call(self, x):
        def turn(y):
            return ops.matmul(y, self.matrix)

        if self.by == "python":
            for _ in range(10):
                x = turn(x)
            return x
        if self.by == "fori":
            return ops.fori_loop(0, 10, lambda i, y: turn(y), x)
        if self.by == "while":
            return ops.while_loop(lambda y: True, lambda y: (turn(y),), (x,), maximum_iterations=10)[0]
        if self.by == "scan":
            return ops.scan(lambda carry, _: (turn(carry), carry), x, length=10)[0]
        if self.by == "map":
            return ops.map(turn, ops.broadcast_to(x, (10, *x.shape)))[0]
        if self.by == "vectorized_map":
            return ops.vectorized_map(turn, ops.broadcast_to(x, (10, *x.shape)))[0]
        if self.by == "cond":
            return ops.cond(ops.sum(x) > 0, lambda: Loops.repeat(turn, x, 10), lambda: turn(x))
        if self.by == "switch":
            return ops.switch(ops.cast(x[0, 0], "int32"), [turn, lambda y: Loops.repeat(turn, y, 10)], x)
        if self.by == "rnn":
            return ops.sum(
                keras.layers.RNN(_Turn(turn, x.shape[-1]), return_sequences=True).call(
                    ops.zeros((4, 10, 8)) + x[:, None]
                ),
                axis=1,
            )
        raise ValueError(self.by)

    @staticmethod
    def repeat(turn, x, times):
        for _ in range(times):
            x = turn(x)
        return x

    def compute_output_shape(self, x_shape):
        return x_shape


class _Turn:
    def __init__(self, turn, units):
        self.turn, self.state_size, self.output_size = turn, units, units
        self.compute_dtype = "float32"

    def get_initial_state(self, batch_size=None):
        return [ops.zeros((batch_size, self.state_size))]

    def __call__(self, x, states):
        h = self.turn(x)
        return h, [h]

    call = __call__


@pytest.mark.parametrize("by", ["python", "fori", "while", "scan", "map", "vectorized_map", "cond", "switch", "rnn"])
def test_a_loop_counts_as_often_as_it_runs(by):
    x = keras.Input((8,))
    cost = kerastf.cost(keras.Model(x, Loops(by)(x)), batch_size=4)
    assert not cost.missed
    products = 10 * 2 * 4 * 8 * 8
    extra = {"cond": 4 * 8 + 1, "rnn": 2 * 10 * 4 * 8}.get(by, 0)  # the sums
    assert cost.flops == products + extra


def test_a_loop_of_unknown_length_is_named():
    class Until(keras.layers.Layer):
        def call(self, x):
            return ops.while_loop(lambda y: ops.sum(y) < 5, lambda y: (y * 2,), (x,))[0]

        def compute_output_shape(self, x_shape):
            return x_shape

    x = keras.Input((8,))
    assert kerastf.cost(keras.Model(x, Until()(x))).missed == ["WhileLoop"]


# --- planted mistakes


@TENSORFLOW
def test_a_missing_operation_is_caught(monkeypatch):
    model = kerastf.create_model("gpt", **SIZES["gpt"])
    for name in ("Matmul", "Softmax"):
        with monkeypatch.context() as patch:
            patch.setattr(arithmetic, "FREE", arithmetic.FREE | {name})
            cost = kerastf.cost(model, length=64)
        if name == "Matmul":
            with pytest.raises(AssertionError, match="ours"):
                require_agreement(model, cost)
        assert cost.flops < kerastf.cost(model, length=64).flops


@TENSORFLOW
def test_a_halved_product_and_a_forgotten_convolution_are_caught(monkeypatch):
    gpt, conv = (kerastf.create_model(id, **SIZES[id]) for id in ("gpt", "conv_s2s"))
    monkeypatch.setitem(arithmetic.RULES, "Matmul", lambda operation, inputs, made: made * inputs[0].shape[-1])
    with pytest.raises(AssertionError, match="ours"):
        require_agreement(gpt, kerastf.cost(gpt))
    monkeypatch.undo()
    monkeypatch.setitem(arithmetic.RULES, "Conv", lambda operation, inputs, made: 2 * made * inputs[1].shape[-2])
    with pytest.raises(AssertionError, match="ours"):
        require_agreement(conv, kerastf.cost(conv))


def test_a_forgotten_loop_is_caught(monkeypatch):
    @contextlib.contextmanager
    def once(self, count):
        yield

    monkeypatch.setattr(counting._Counter, "repeated", once)
    with pytest.raises(AssertionError):
        test_recurrent_networks_by_hand("lstm", lambda u: 2 * u * 4 * u, lambda u: 13 * u, False)
    with pytest.raises(AssertionError):
        test_a_loop_counts_as_often_as_it_runs("scan")


def test_every_operation_of_keras_has_a_rule():
    import keras.src.ops as all_ops

    # Decompositions, transforms and pictures; `missed` names them where a model has one.
    unknown = """
        Cholesky CholeskyInverse Det Eig Eigh Inv LuFactor Qr Solve SolveTriangular SVD Lstsq MatrixRank Pinv JVP Slogdet
        Logdet FFT FFT2 IFFT2 RFFT IRFFT STFT ISTFT CDist CTCLoss CTCDecode Corrcoef Correlate Percentile Quantile
        Nanpercentile Nanquantile RGBToHSV HSVToRGB Resize AffineTransform MapCoordinates PerspectiveTransform
        GaussianBlur ElasticTransform ScaleAndTranslate SobelEdges SSIM
    """
    unknown = set(unknown.split())
    known = {*arithmetic.PER_OUTPUT, *arithmetic.PER_INPUT, *arithmetic.FREE, *arithmetic.RULES, *symbolic._INNER}
    modules = [m for _, m in inspect.getmembers(all_ops, inspect.ismodule) if m.__name__.startswith("keras.src.ops.")]
    found = {n for m in modules for n, c in inspect.getmembers(m, inspect.isclass)
             if issubclass(c, keras.Operation) and c.__module__ == m.__name__}  # fmt: skip
    found -= {"Operation", "Function", "Layer"}
    assert len(found) > 300
    assert found - known - unknown == set()
    assert not known & unknown


# --- what cannot be followed


def test_a_block_that_cannot_be_followed_is_named_and_the_rest_counted(monkeypatch):
    @kerastf.register("norm", "stubborn", supports=("causal",))
    class Stubborn(keras.layers.Layer):
        """Asks for numbers, which a pass over shapes has none of.

        Args:
            **kwargs: Passed on.
        """

        def call(self, x):
            if ops.sum(x) > 0:
                return x
            return -x

        def compute_output_shape(self, x_shape):
            return x_shape

    plain = kerastf.cost("gpt", **SIZES["gpt"], norm="none")
    cost = kerastf.cost("gpt", **SIZES["gpt"], norm="stubborn")
    assert cost.missed == ["attention_norm", "feedforward_norm", "norm"]
    assert 0 < cost.flops - plain.flops < plain.flops / 100  # the sums that it came to
    assert "Not counted, because it could not be followed: attention_norm" in str(cost)


def test_an_operation_without_a_rule_is_named():
    class Inverse(keras.layers.Layer):
        def call(self, x):
            return ops.inv(x)

    x = keras.Input((4, 4))
    cost = kerastf.cost(keras.Model(x, keras.layers.Dense(3)(Inverse()(x))))
    assert cost.missed == ["Inv"] and cost.flops == 4 * (2 * 4 * 3 + 3)


def test_a_weight_on_the_left_and_a_constant_on_the_left():
    class Left(keras.layers.Layer):
        def build(self, x_shape):
            self.gain = self.add_weight(shape=(x_shape[-1],), name="gain")

        def call(self, x):
            return np.ones(4, "float32") * (self.gain * x) - ops.ones((4,)) + (ops.ones((4,)) - x)

    x = keras.Input((4,))
    cost = kerastf.cost(keras.Model(x, Left()(x)))
    assert cost.missed == [] and cost.flops == 5 * 4


# --- activations, parameters, the table


def test_activation_memory_by_hand():
    batch, length, width, heads, vocabulary = 2, 16, 32, 4, 100
    cost = kerastf.cost("gpt", vocab_size=vocabulary, max_length=length, dim=width, num_layers=1, num_heads=heads,
                        batch_size=batch)  # fmt: skip
    wide = batch * length * width
    # Embedding, position; norm, qkv, weights, output, sum; norm, two of the feed-forward, sum; norm, logits.
    # The feed-forward's gelu is no layer: its output is part of the first map's.
    tensors = 2 * wide + (wide + 3 * wide + batch * heads * length**2 + wide) + (wide + 4 * wide + wide) + wide + wide
    found = {row.path: row.activation_bytes for row in cost.layers}
    assert cost.activation_bytes == 4 * (tensors + batch * length * vocabulary), found


def test_half_the_bytes_in_bfloat16():
    full, half = (kerastf.cost("gpt", **SIZES["gpt"], dtype=d) for d in ("float32", "bfloat16"))
    assert full.flops == half.flops
    assert 0.49 < half.activation_bytes / full.activation_bytes < 0.75


@pytest.mark.parametrize("entry", registry.entries("model"), ids=lambda e: e.id)
def test_every_family(entry):
    example = entry.manifest["example"]
    cost = kerastf.cost(entry.id, length=6, **example)
    assert cost.parameters == kerastf.count_parameters(entry.id, **example)
    assert cost.flops > 0 and cost.activation_bytes > 0 and not cost.missed
    model = kerastf.create_model(entry.id, **example)
    before = [len(layer._inbound_nodes) for layer in model.layers]
    assert kerastf.cost(model, length=6).layers == cost.layers  # allocated or not
    assert [len(layer._inbound_nodes) for layer in model.layers] == before  # and no trace is left in it
    json.dumps(cost.summary())


BLOCKS = [
    (slot, e.id) for slot in ("attention", "norm", "feedforward", "position") for e in registry.entries(slot)
    if not e.id.endswith("_2d")
]  # fmt: skip


@pytest.mark.parametrize("slot, id", BLOCKS)
def test_every_block_can_be_followed(slot, id):
    example = registry.find(slot, id).manifest.get("example", {})
    options = {k: v for k, v in example.items() if k not in ("num_heads", "max_length")}
    cost = kerastf.cost("gpt", **SIZES["gpt"], **{slot: {"name": id, **options}}, length=7)
    assert not cost.missed and cost.flops > 0


def test_the_table_adds_up():
    cost = kerastf.cost("gpt", **SIZES["gpt"])
    for depth in (1, 2, 9):
        rows = cost.down_to(depth)
        assert sum(r.flops for r in rows) == cost.flops
        assert sum(r.parameters for r in rows) == cost.parameters
        assert sum(r.activation_bytes for r in rows) == cost.activation_bytes
        assert max(r.path.count("/") for r in rows) < depth
    assert [r.path for r in cost.down_to(1)] == ["embedding", "position", "layer_0", "layer_1", "norm", "head"]
    assert "layer_1/attention/qkv" in cost.table(3)


def test_large_ones_take_seconds():
    import time

    start = time.process_time()
    cost = kerastf.cost("gpt.gpt2_xl")
    assert cost.parameters == 1_557_611_200 and cost.inputs == {"tokens": (1, 1024)}
    assert time.process_time() - start < 30  # three where it is measured alone


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: kerastf.cost("gpt", **SIZES["gpt"], length=65), "The model has 64 positions"),
        (lambda: kerastf.flops("gpt", **SIZES["gpt"], length=0), "`length` must be at least 1. Received: length=0"),
        (lambda: kerastf.cost("gpt", **SIZES["gpt"], batch_size=-1), "`batch_size` must be at least 1. Received: batch_size=-1"),
        (lambda: kerastf.cost(keras.Sequential([keras.layers.Dense(2)], name="open")), "The model does not say what its input is. Give `inputs`. Received: model='open'"),
        (lambda: kerastf.cost(keras.Sequential([keras.layers.Dense(2)]), dim=3), "Options are for a model given by its id. Received: dim"),
        (lambda: kerastf.cost(keras.Sequential([keras.Input((None, 3)), keras.layers.Dense(2)])), "Every size of an input must be known. Received: shape (1, None, 3)"),
    ],
)  # fmt: skip
def test_mistakes(call, message):
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.peers
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends_count_the_same(backend):
    pytest.importorskip(backend)
    code = (
        "import json, kerastf; from kerastf import registry;"
        "found = [kerastf.cost(e.id, length=6, **e.manifest['example']) for e in registry.entries('model')];"
        "print(json.dumps([[c.flops, c.activation_bytes, c.missed] for c in found]))"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "KERAS_BACKEND": backend},
                          capture_output=True, text=True, check=True)  # fmt: skip
    ours = [kerastf.cost(e.id, length=6, **e.manifest["example"]) for e in registry.entries("model")]
    assert json.loads(done.stdout.splitlines()[-1]) == [[c.flops, c.activation_bytes, c.missed] for c in ours]
