"""Records from TFRecord files of `tf.train.Example`."""

from pathlib import Path

from kerastf.errors import FileFormatError


def _value(feature):
    """What a feature holds: a value where it holds one, otherwise a list."""
    kind = feature.WhichOneof("kind")
    values = list(getattr(feature, kind).value) if kind else []
    if kind == "bytes_list":
        values = [_text(v) for v in values]
    return values[0] if len(values) == 1 else values


def _text(raw):
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw  # an image


def read_examples(path):
    """One record per example."""
    import tensorflow as tf

    name = Path(path).name
    packed = "GZIP" if Path(path).suffix == ".gz" else ""
    try:
        for number, raw in enumerate(tf.data.TFRecordDataset(str(path), compression_type=packed), 1):
            example = tf.train.Example.FromString(raw.numpy())
            where = f"{name}, example {number}"
            yield {key: _value(feature) for key, feature in sorted(example.features.feature.items())}, where
    except tf.errors.DataLossError:
        raise FileFormatError(f"{name} is damaged or not a TFRecord file.") from None
    except Exception as error:
        if type(error).__name__ != "DecodeError":
            raise
        raise FileFormatError(f"{name}: what it holds is not a tf.train.Example.") from None
