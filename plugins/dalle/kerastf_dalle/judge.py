"""A classifier of pictures of shapes, which judges drawings. Shapes: N pictures, H height, W width."""

import keras
import numpy as np

from kerastf_dalle.shapes import ATTRIBUTES, VALUES, labels


def classifier(size=32, dim=16):
    """A plain convolutional network with one answer per attribute.

    Args:
        size: Height and width of the pictures.
        dim: Channels of its first convolution.

    Returns:
        A `keras.Model` from pictures `(N, H, W, 3)` to a dict of logits, compiled.

    Examples:
        >>> {name: logits.shape[-1] for name, logits in sorted(classifier().output.items())}
        {'colour': 6, 'count': 3, 'position': 5, 'shape': 4}
    """
    pictures = keras.Input((size, size, 3))
    x = pictures
    for i, filters in enumerate((dim, 2 * dim, 4 * dim)):
        x = keras.layers.MaxPooling2D(name=f"pooling_{i}")(x) if i else x
        x = keras.layers.Conv2D(filters, 3, padding="same", activation="relu", name=f"convolution_{i}")(x)
    # What there is, wherever it is; and where something is.
    what = keras.layers.GlobalMaxPooling2D(name="what")(x)
    where = keras.layers.Flatten(name="where")(keras.layers.MaxPooling2D(name="pooling")(x))
    x = keras.layers.Concatenate(name="both")([what, where])
    x = keras.layers.Dense(8 * dim, activation="relu", name="hidden")(x)
    return keras.Model(pictures, {name: keras.layers.Dense(len(VALUES[name]), name=name)(x) for name in ATTRIBUTES})


def train(model, images, shown, *, epochs, batch_size=64, rate=2e-3, **compiling):
    """Trains a classifier on pictures and what they show.

    Args:
        model: What `classifier` made.
        images: Array `(N, H, W, 3)`.
        shown: N scenes.
        epochs: How often it sees them all.
        batch_size: Pictures per step.
        rate: Learning rate at the start; it falls to 0.
        **compiling: Passed to `compile`.
    """
    steps = epochs * -(-len(images) // batch_size)
    schedule = keras.optimizers.schedules.CosineDecay(rate, steps)
    loss = {name: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in ATTRIBUTES}
    model.compile(keras.optimizers.Adam(schedule), loss=loss, **compiling)
    model.fit(images, labels(shown), epochs=epochs, batch_size=batch_size, verbose=2)


def judge(model, images, shown):
    """Which attributes of pictures a classifier finds as they should be.

    Args:
        model: A trained classifier.
        images: Array `(N, H, W, 3)`.
        shown: The N scenes that they should show.

    Returns:
        By attribute, and as `"all"` for all of them together: a boolean array `(N,)`.
    """
    found = model.predict(np.asarray(images), batch_size=256, verbose=0)
    wanted = labels(shown)
    right = {name: found[name].argmax(-1) == wanted[name] for name in ATTRIBUTES}
    return {**right, "all": np.all(list(right.values()), axis=0)}
