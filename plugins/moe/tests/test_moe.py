"""The mixture of experts: the contract, the definition in NumPy, what a capacity may and may not do, and the balance."""

import keras
import numpy as np
import pytest
from keras import ops
from kerastf_moe import TopK, assign_slots, balancing_loss

import kerastf
from kerastf import compat
from kerastf.testing import check_block, check_model

ID = "moe/top_k"
SMALL = {"dim": 16, "num_layers": 2, "num_heads": 2, "dropout": 0.0}
FAMILIES = {
    "gpt": {"vocab_size": 11, "max_length": 8},
    "bert": {"vocab_size": 11, "max_length": 8},
    "vit": {"image_size": 8, "patch_size": 4, "head": {"name": "classifier", "num_classes": 3}},
    "transformer": {"vocab_size": 11, "max_length": 8, "start_id": 1, "end_id": 2, "pad_id": 0},
}


def made(dim=6, length=9, rows=3, **options):
    """A block whose weights all matter, and an input."""
    keras.utils.set_random_seed(2)
    block = TopK(**{"num_experts": 4, "k": 2, "mlp_dim": 5, "initializer_std": 0.7, **options})
    x = np.random.default_rng(0).normal(size=(rows, length, dim)).astype("float32")
    block(x)
    for bias in (block.expand_bias, block.contract_bias):
        bias.assign(0.5 * keras.random.normal(bias.shape))
    return block, x


def numpy(x):
    return np.asarray(ops.convert_to_numpy(x), "float64")


def by_definition(block, x, slots=None):
    """One position after the other, one choice after the other; with `slots`, until an expert has no more."""
    router, expand, contract = numpy(block.router), numpy(block.expand), numpy(block.contract)
    b1, b2 = numpy(block.expand_bias), numpy(block.contract_bias)
    y = np.zeros(x.shape)
    for b in range(x.shape[0]):
        used = np.zeros(block.num_experts, int)
        for t in range(x.shape[1]):
            scores = np.exp(x[b, t].astype("float64") @ router)
            for e in np.argsort(-scores)[: block.k]:
                used[e] += 1
                if slots is None or used[e] <= slots:
                    h = np.maximum(x[b, t] @ expand[e] + b1[e], 0)
                    y[b, t] += scores[e] / scores.sum() * (h @ contract[e] + b2[e])
    return y


def test_contract():
    check_block("feedforward", ID, level="full")


def test_gpt_with_it_keeps_the_contract_of_models():
    checks = ["causal", "padding", "batch", "steps", "generate", "gradients"]
    check_model("gpt", feedforward={"name": ID, "num_experts": 4}, only=checks)


# --- the definition


@pytest.mark.parametrize("k", [1, 2, 4])
def test_equals_the_definition(k):
    block, x = made(k=k, activation="relu")
    np.testing.assert_allclose(numpy(block(x)), by_definition(block, x), atol=1e-5)


@pytest.mark.parametrize("k, factor", [(1, 0.5), (1, 1.25), (2, 0.3), (2, 1.0), (4, 0.5)])
def test_in_training_equals_the_definition_with_slots(k, factor):
    block, x = made(k=k, activation="relu", capacity_factor=factor)
    slots = block.capacity(9)
    assert slots == int(np.ceil(factor * k * 9 / 4))
    want = by_definition(block, x, slots)
    assert k == 4 or factor > 1 or np.any(np.abs(want - by_definition(block, x)) > 0.01)  # something is dropped
    np.testing.assert_allclose(numpy(block(x, training=True)), want, atol=1e-5)


def test_without_a_limit_training_equals_inference():
    block, x = made(capacity_factor=None)
    np.testing.assert_allclose(numpy(block(x, training=True)), numpy(block(x)), atol=1e-6)
    roomy, _ = made(capacity_factor=100.0)
    np.testing.assert_allclose(numpy(roomy(x, training=True)), numpy(roomy(x)), atol=1e-5)


def test_all_experts_chosen_is_a_sum_weighted_by_softmax():
    block, x = made(k=4)
    each = [
        keras.activations.gelu(x @ block.expand[e] + block.expand_bias[e]) @ block.contract[e] + block.contract_bias[e]
        for e in range(4)
    ]
    weights = numpy(ops.softmax(x @ ops.convert_to_tensor(block.router)))
    want = sum(numpy(y) * weights[..., e : e + 1] for e, y in enumerate(each))
    np.testing.assert_allclose(numpy(block(x)), want, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_one_expert_is_an_mlp(bias):
    block = TopK(1, k=1, mlp_dim=5, bias=bias, initializer_std=0.5)
    mlp = kerastf.create_block("feedforward", "mlp", mlp_dim=5, bias=bias)
    x = np.random.default_rng(0).normal(size=(2, 7, 6)).astype("float32")
    block(x), mlp(x)
    mlp.expand.kernel.assign(block.expand[0])
    mlp.contract.kernel.assign(block.contract[0])
    for training in (False, True):
        np.testing.assert_allclose(numpy(block(x, training=training)), numpy(mlp(x)), atol=1e-6)


# --- capacity


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_no_expert_has_more_positions_than_slots_and_the_first_have_them(slots):
    experts = np.random.default_rng(slots).integers(0, 3, (4, 12, 1))
    position, slot, kept = (numpy(a).astype(int) for a in assign_slots(ops.convert_to_tensor(experts), 3, slots))
    for row in range(4):
        for e in range(3):
            asked = np.flatnonzero(experts[row, :, 0] == e)
            assert np.flatnonzero(kept[row] & (experts[row, :, 0] == e)).tolist() == asked[:slots].tolist()
        held = slot[row][kept[row].astype(bool)]
        assert len(set(held)) == len(held)  # no slot is given twice
        assert np.array_equal(position[row][held], np.flatnonzero(kept[row]))  # and each reads its position
        assert np.array_equal(held // slots, experts[row, kept[row].astype(bool), 0])


def test_a_dropped_position_gets_zero():
    block, _ = made(k=1, capacity_factor=0.5)
    x = np.ones((2, 8, 6), "float32")  # all want the same expert, which has one slot
    assert block.capacity(8) == 1
    y = numpy(block(x, training=True))
    assert np.all(np.abs(y[:, 0]).max(-1) > 0) and np.all(y[:, 1:] == 0)


def test_in_training_no_output_sees_a_later_input_or_another_row():
    block, x = made(length=12, capacity_factor=0.5)
    before = numpy(block(x, training=True))
    rng = np.random.default_rng(1)
    for t in range(11):
        changed = x.copy()
        changed[:, t + 1 :] = rng.normal(size=changed[:, t + 1 :].shape)
        slots = block.capacity(12)
        assert slots < 12
        np.testing.assert_allclose(numpy(block(changed, training=True))[:, : t + 1], before[:, : t + 1], atol=1e-6)
    for row in range(3):
        np.testing.assert_allclose(numpy(block(x[row : row + 1], training=True))[0], before[row], atol=1e-6)


def test_gradients_of_training_reach_every_weight():
    block, x = made(balance=0.0)
    aim = np.random.default_rng(4).normal(size=x.shape).astype("float32")
    for variable, gradient in zip(
        block.trainable_variables,
        compat.gradients(lambda: ops.sum(block(x, training=True) * aim), block.trainable_variables), strict=True,
    ):  # fmt: skip
        assert np.all(np.isfinite(gradient)) and np.any(gradient), variable.path


def test_a_length_that_is_not_known_when_the_graph_is_made():
    import tensorflow as tf

    block, x = made(capacity_factor=0.6)
    signature = [tf.TensorSpec((None, None, 6))]
    function = tf.function(lambda x: block(x, training=True), input_signature=signature)
    for length in (1, 5, 9):
        part = x[:, :length]
        np.testing.assert_allclose(numpy(function(part)), numpy(block(part, training=True)), atol=1e-6)


def test_xla_agrees_in_training():
    block, x = made(capacity_factor=0.6)
    function = compat.compiled(lambda x: block(x, training=True), block)
    np.testing.assert_allclose(numpy(function(ops.convert_to_tensor(x))), numpy(block(x, training=True)), atol=1e-5)


# --- balance


def test_balance_of_known_routings():
    even = ops.full((2, 6, 3), 1 / 3)
    turns = ops.convert_to_tensor(np.arange(12).reshape(2, 6, 1) % 3)
    assert float(balancing_loss(even, turns)) == pytest.approx(1)
    assert float(balancing_loss(even, 0 * turns)) == pytest.approx(1)  # no preference, whatever is chosen
    certain = ops.one_hot(turns[..., 0], 3)
    assert float(balancing_loss(certain, turns)) == pytest.approx(1)  # each position is certain, all are used alike
    assert float(balancing_loss(ops.one_hot(0 * turns[..., 0], 3), 0 * turns)) == pytest.approx(3)  # one takes all


def test_balance_equals_numpy_and_only_training_adds_it():
    block, x = made(balance=0.5)
    block(x, training=True)
    p = np.exp(x.astype("float64") @ numpy(block.router))
    p /= p.sum(-1, keepdims=True)
    chosen = np.bincount(np.argsort(-p)[..., :2].ravel(), minlength=4) / (27 * 2)
    assert float(block.losses[0]) == pytest.approx(0.5 * 4 * np.sum(chosen * p.mean((0, 1))), rel=1e-5)
    block(x)
    assert block.losses == []


def test_the_balance_alone_spreads_the_choices():
    block, x = made(k=1, length=64, balance=1.0)
    x = x + 1.0  # a common direction, so that one expert is preferred
    optimizer = keras.optimizers.Adam(0.02)

    def share():
        return np.bincount(numpy(ops.argmax(block.route(x), -1)).astype(int).ravel(), minlength=4).max() / (3 * 64)

    before = share()
    for _ in range(60):

        def loss():
            block(x, training=True)
            return block.losses[0]

        optimizer.apply([ops.convert_to_tensor(g) for g in compat.gradients(loss, [block.router])], [block.router])
    assert before > 0.45 > 0.35 > share()


# --- in models


def with_balance(family, balance):
    keras.utils.set_random_seed(0)
    block = {"name": ID, "num_experts": 3, "k": 1, "mlp_dim": 8, "balance": balance, "capacity_factor": 1.0}
    model = kerastf.create_model(family, **SMALL, **FAMILIES[family], feedforward=block)
    model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
    return model


@pytest.mark.parametrize("family", ["gpt", *(pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES if f != "gpt")])
def test_the_loss_of_a_model_has_exactly_the_balance_in_it(family, tmp_path):
    plain, model = with_balance(family, 0.0), with_balance(family, 0.3)
    inputs = type(model).example_inputs(model.options, 6, 5, np.random.default_rng(0))
    targets = model.example_targets(inputs, np.random.default_rng(1))
    x = inputs if len(inputs) > 1 else next(iter(inputs.values()))
    model(keras.tree.map_structure(ops.convert_to_tensor, x), training=True)
    layers = 4 if family == "transformer" else 2
    terms = [float(loss) for loss in model.losses]
    assert len(terms) == layers and min(terms) > 0.2
    losses = [
        m.fit(x, targets, batch_size=6, epochs=2, shuffle=False, verbose=0).history["loss"] for m in (plain, model)
    ]
    assert losses[1][0] - losses[0][0] == pytest.approx(sum(terms), abs=1e-5)
    router = next(w for w in model.trainable_variables if w.path.endswith("router"))
    other = next(w for w in plain.trainable_variables if w.path.endswith("router"))
    assert np.abs(numpy(router) - numpy(other)).max() > 1e-6  # its gradient counts, too
    assert model.evaluate(x, targets, verbose=0, return_dict=True)["loss"] < losses[1][0] - 0.5 * sum(terms)
    model.save(tmp_path / "model.keras")
    loaded = kerastf.load_model(tmp_path / "model.keras")
    same = keras.tree.map_structure(np.array_equal, *(m.predict(x, verbose=0) for m in (loaded, model)))
    assert all(keras.tree.flatten(same))


def test_the_transformer_decodes_with_it():
    check_model("transformer", feedforward={"name": ID, "num_experts": 3}, only=["causal", "padding", "steps"])


@pytest.mark.slow
def test_the_transformer_writes_with_it():
    check_model("transformer", feedforward={"name": ID, "num_experts": 3}, only=["generate", "fit"])


@pytest.mark.parametrize(
    "options, said",
    [
        ({"num_experts": 0}, "`num_experts` must be at least 1. Received: num_experts=0"),
        ({"k": 9}, r"`k` must be in \[1, num_experts\]. Received: k=9, num_experts=8"),
        ({"capacity_factor": 0.0}, "`capacity_factor` must be above 0, or None to drop nothing. Received: capacity_fa"),
        ({"balance": -1.0}, "`balance` must be at least 0. Received: balance=-1.0"),
        ({"activation": "gulu"}, "`activation` must be 'gelu_tanh' or the name of a Keras activation. Received: act"),
    ],
)
def test_options_that_cannot_be(options, said):
    with pytest.raises(ValueError, match=said):
        TopK(**options)
