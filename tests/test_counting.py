"""Costs beside TensorFlow's own profiler, formulas written by hand, published numbers, and planted mistakes."""

import inspect

import keras
import numpy as np
import pytest
from counted import SIZES
from keras import ops

import kerastf
from kerastf import arithmetic, symbolic

TENSORFLOW = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow's profiler reads its graphs"
)


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
    # timm says 17.58 G multiplications with additions for ViT-B/16, and 4.6 G for ViT-S/16, fc included, where the last
    # layer computes all patches. So it does for a mean.
    head = {"name": "classifier", "pooling": "mean"}
    assert abs(kerastf.flops("vit.b16", head=head) / (2 * 17.58e9) - 1) < 0.01
    assert abs(kerastf.flops("vit.s16", head=head) / (2 * 4.61e9) - 1) < 0.02


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
