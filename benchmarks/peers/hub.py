"""KerasHub's programs, without preprocessors: they are given tokens."""

import functools

import keras
import keras_hub
import numpy as np

from peers import data
from peers.keras_loop import Training, Writing


def create(case, settings):
    """The program of a case; `settings["jit"]` is `jit_compile`."""
    model, pair = MODELS[case["family"]](case, case["sizes"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"optimizer": "adamw", "loss": loss, "jit_compile": settings["jit"]}
    if case["kind"] == "generate":
        model.compile(**options, weighted_metrics=None, sampler="greedy")
        return Writing(_writer(model, case))
    if isinstance(model, keras_hub.models.Task):
        # Its own default counts accuracy.
        options["metrics" if case["family"] == "vit" else "weighted_metrics"] = None
    model.compile(**options)
    # Its own `fit` wants TensorFlow for what comes before the model, which is nothing here.
    fit = None if keras.backend.backend() == "tensorflow" else functools.partial(keras.Model.fit, model)
    return Training(model, case, pair, fit)


def _writer(model, case):
    prompt = data.prompts(case)
    shape = (case["batch"], case["length"] + case["new"])
    inputs = {"token_ids": np.zeros(shape, "int32"), "padding_mask": np.zeros(shape, "int32")}
    inputs["token_ids"][:, : case["length"]] = prompt
    inputs["padding_mask"][:, : case["length"]] = 1
    return lambda: keras.ops.convert_to_numpy(model.generate(inputs, stop_token_ids=None)["token_ids"])


def _sizes(case, sizes):
    return {
        "vocabulary_size": sizes["vocab_size"], "num_layers": sizes["num_layers"], "num_heads": sizes["num_heads"],
        "hidden_dim": sizes["dim"], "intermediate_dim": 4 * sizes["dim"], "dropout": case["dropout"],
        "max_sequence_length": sizes["max_length"], "dtype": case["dtype"],
    }  # fmt: skip


def _gpt(case, sizes):
    backbone = keras_hub.models.GPT2Backbone(**_sizes(case, sizes))

    def pair(arrays):
        tokens = arrays["tokens"]
        return {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}, arrays["labels"]

    return keras_hub.models.GPT2CausalLM(backbone, preprocessor=None), pair


def _bert(case, sizes):
    backbone = keras_hub.models.BertBackbone(**_sizes(case, sizes))

    def pair(arrays):
        tokens = arrays["tokens"]
        inputs = {"token_ids": tokens, "padding_mask": np.ones_like(tokens), "segment_ids": arrays["segments"]}
        return {**inputs, "mask_positions": arrays["positions"]}, arrays["labels"]

    return keras_hub.models.BertMaskedLM(backbone, preprocessor=None), pair


def _vit(case, sizes):
    side, patch = sizes["image_size"], sizes["patch_size"]
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(side, side, 3), patch_size=patch, num_layers=sizes["num_layers"], num_heads=sizes["num_heads"],
        hidden_dim=sizes["dim"], mlp_dim=4 * sizes["dim"], dropout_rate=case["dropout"], dtype=case["dtype"],
    )  # fmt: skip
    model = keras_hub.models.ViTImageClassifier(backbone, sizes["num_classes"], preprocessor=None)
    return model, lambda arrays: (arrays["images"], arrays["labels"])


def _transformer(case, sizes):
    """An encoder-decoder of KerasHub's layers, which has no such model of its own."""
    layers, dim = keras_hub.layers, sizes["dim"]
    block = {"intermediate_dim": sizes["mlp_dim"], "num_heads": sizes["num_heads"], "dropout": case["dropout"]}
    embedding = layers.ReversibleEmbedding(sizes["vocab_size"], dim, tie_weights=True, name="embedding")
    drop = keras.layers.Dropout(case["dropout"])
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("source", "target")}  # (B, S), (B, T)
    x, y = (embedding(inputs[name]) * dim**0.5 for name in inputs)
    x, y = (drop(h + layers.SinePositionEncoding()(h)) for h in (x, y))  # (B, S, C), (B, T, C)
    for _ in range(sizes["num_layers"]):
        x = layers.TransformerEncoder(**block)(x)
    for _ in range(sizes["num_layers"]):
        y = layers.TransformerDecoder(**block)(y, x)
    model = keras.Model(inputs, embedding(y, reverse=True))  # (B, T, V)
    return model, lambda arrays: ({n: arrays[n] for n in inputs}, arrays["labels"])


MODELS = {"gpt": _gpt, "bert": _bert, "vit": _vit, "transformer": _transformer}
