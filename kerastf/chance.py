"""What dropout keeps, by chance, with few random bits and few operations. For TensorFlow."""

import functools

from keras import ops

LANE = 16  # bits that decide about one number; 2^-16 is as near as a rate is met


def next_seed(generator):
    """The next two integers of a `keras.random.SeedGenerator`, as signed ones."""
    return ops.cast(generator.next(), "int32")


def kept_share(rate):
    """The share that `kept_by_chance` keeps: `1 - rate`, to 2^-16."""
    return 1 - round(rate * 2**LANE) / 2**LANE


def kept_by_chance(seed, shape, rate):
    """A boolean tensor, False for a share of `rate`, by a seed of two integers.

    Why: random bits are what dropout costs most. A number of 32 bits decides twice here.
    """
    import tensorflow as tf

    lanes, draw = 32 // LANE, functools.partial(tf.random.stateless_uniform, minval=None, maxval=None, dtype="uint32")
    *rows, last = shape or (1,)
    if isinstance(last, int) and last % lanes == 0:  # the same bits as below, with fewer operations to trace
        numbers = tf.reshape(tf.bitcast(draw([*rows, last // lanes], seed), "uint16"), shape)
    else:
        count = tf.reduce_prod(tf.convert_to_tensor(shape, "int32"))
        numbers = tf.reshape(tf.bitcast(draw([(count + lanes - 1) // lanes], seed), "uint16"), [-1])
        numbers = tf.reshape(numbers[:count], shape)
    return numbers >= tf.constant(round(rate * 2**LANE), "uint16")


def only_kept(x, kept, rate):
    """What is kept of a tensor, divided by the share that `kept_by_chance` keeps, and 0 elsewhere."""
    return ops.where(kept, x * (1 / kept_share(rate)), 0.0)
