"""What the sequence-to-sequence recipes share: tokenizers, training with the best epoch kept, scores.

The recipes run on every backend of Keras: `KERAS_BACKEND=jax python recipes/translate.py ...` trains on a GPU.
"""

import json
import math
import time
from pathlib import Path

import keras

import kerastf
from kerastf import data, metrics

SPECIAL = ("pad", "start", "end", "unknown")


class Clock(keras.callbacks.Callback):
    """Stops a training after some minutes, at the end of an epoch."""

    def __init__(self, minutes):
        super().__init__()
        self.end = time.monotonic() + 60 * minutes

    def on_epoch_end(self, epoch, logs=None):
        if time.monotonic() > self.end:
            self.model.stop_training = True


class KeepBest(keras.callbacks.Callback):
    """Keeps the weights of the epoch with the lowest validation loss, and puts them back at the end."""

    def __init__(self):
        super().__init__()
        self.loss, self.weights = math.inf, None

    def on_epoch_end(self, epoch, logs=None):
        if logs["val_loss"] < self.loss:
            self.loss, self.weights = logs["val_loss"], self.model.get_weights()

    def on_train_end(self, logs=None):
        if self.weights is not None:
            self.model.set_weights(self.weights)


def batches(model, pairs, *, batch_size, max_length, shuffle=False):
    """Batches of pairs of strings for a model with tokenizers; longer texts are cut."""
    tokenizers = model.source_tokenizer, model.tokenizer
    return data.pairs(
        pairs, None, *tokenizers, batch_size=batch_size, max_length=max_length, too_long="cut", shuffle=shuffle
    )


def train(model, train_pairs, valid_pairs, *, epochs, batch_size, rate, minutes=1e9, max_length=64, warmup=0.1):
    """Trains on pairs of strings: warm-up and cosine decay, gradients clipped, the best epoch kept.

    Returns:
        The history of `fit`, and the seconds it took.
    """
    sizes = {"batch_size": batch_size, "max_length": max_length}
    steps = epochs * -(-len(train_pairs) // batch_size)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=rate, warmup_steps=max(1, int(warmup * steps)), alpha=0.02
    )
    optimizer = keras.optimizers.AdamW(schedule, beta_2=0.98, weight_decay=1e-4, clipnorm=1.0)
    model.compile(optimizer, metrics=[metrics.Perplexity(model.options["pad_id"]), *model.head.default_metrics()])
    start = time.monotonic()
    history = model.fit(
        batches(model, train_pairs, shuffle=True, **sizes),
        validation_data=batches(model, valid_pairs, **sizes),
        epochs=epochs,
        verbose=2,
        shuffle=False,
        callbacks=[KeepBest(), Clock(minutes)],
    )
    return history.history, time.monotonic() - start


def write(model, sources, *, max_length, batch_size=128, num_beams=1, length_penalty=1.0):
    """What the model makes of each source, in batches of like length."""
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    found = [""] * len(sources)
    for at in range(0, len(order), batch_size):
        part = order[at : at + batch_size]
        texts = [sources[i] for i in part] + [sources[part[-1]]] * (batch_size - len(part))  # one shape of batch
        outputs = model.generate(texts, max_length=max_length, num_beams=num_beams, length_penalty=length_penalty)
        for i, output in zip(part, outputs, strict=False):
            found[i] = output
    return found


def report(out, **figures):
    """Prints the figures, and keeps them beside the model."""
    line = json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()})
    print(line, flush=True)
    if out:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        with open(out, "a") as file:
            file.write(line + "\n")


def build(id, source_tokenizer, tokenizer, **options):
    """A model with its tokenizers; families with shared embeddings get their own per side."""
    known = kerastf.config.options_of(kerastf.registry.resolve("model", kerastf.registry.find("model", id).id))
    if "shared_embeddings" in known:
        options.setdefault("shared_embeddings", source_tokenizer is tokenizer)
    return kerastf.create_model(id, tokenizer=tokenizer, source_tokenizer=source_tokenizer, **options)
