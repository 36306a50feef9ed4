"""Compiles programs on another core while Python still traces the step that will run them. TensorFlow only."""

import concurrent.futures
import contextvars
import functools
import math
import weakref

import keras

from kerastf import compat

LARGE = 2**24  # numbers of an argument from which on a program waits for the step: to be compiled it is run once

_rows = contextvars.ContextVar("rows", default=None)
_of_halves = weakref.WeakSet()  # graphs of functions that are given half of a batch
_begun = {}  # what became of each traced program, by its name and the shapes


def expecting(x, batch_size):
    """Within the block, a step is traced whose batches are taken from `x`, where that is arrays: of so many rows."""
    leaf = next(iter(keras.tree.flatten(x)), None)
    shape = getattr(leaf, "shape", ())
    return compat.switched(_rows, min(batch_size or 32, shape[0]) if len(shape) else None)


def begin(compiled, *arguments):
    """Begins to compile a program that is being traced, for the shapes that it will run with, if all are known.

    Why: before a step TensorFlow traces, on one core, and compiles a program only when the step comes to it. Nothing
    compiles a program but running it, so it is run on zeros, and on variables of its own.

    Args:
        compiled: A `tf.function` that XLA compiles, just called with these arguments in the graph of a step.
        *arguments: Tensors, variables, None, or structures of them.
    """
    import tensorflow as tf

    given = [x for x in tf.nest.flatten(arguments) if x is not None]
    shapes = [expected(x.shape) for x in given]
    if any(None in shape or math.prod(shape) >= LARGE for shape in shapes):
        return
    traced = compiled.get_concrete_function(*arguments)  # the one that the graph calls
    if (traced.name, *shapes) not in _begun:
        kinds = [(isinstance(x, tf.Variable), shape, x.dtype) for x, shape in zip(given, shapes, strict=True)]
        _begun[traced.name, *shapes] = _worker().submit(_compile, traced, arguments, kinds)


def meanwhile(functions):
    """Calls the functions one after another on another core; returns a future."""
    return _worker().submit(lambda: [function() for function in functions])


def halve(graph):
    """Notes that the graph of a function, being traced, is given half of a batch."""
    _of_halves.add(graph)


def _halved(graph):
    """Whether a graph is given half of a batch, or one around it; around a function's gradient is the function."""
    return graph is not None and (graph in _of_halves or _halved(getattr(graph, "outer_graph", None)))


def expected(shape):
    """A shape with the number of rows that a batch will have, where only that is missing."""
    import tensorflow as tf

    shape, rows = tuple(shape), _rows.get()
    if not shape or shape[0] is not None or rows is None:
        return shape
    return (rows // 2 if _halved(tf.compat.v1.get_default_graph()) else rows, *shape[1:])


@functools.cache
def _worker():
    return concurrent.futures.ThreadPoolExecutor(1, "kerastf-ahead")


def _compile(traced, arguments, kinds):
    """Runs the program within a graph: TensorFlow counts one that is called from Python as another program."""
    import tensorflow as tf

    def made(variable, shape, dtype):
        zeros = tf.zeros(shape, dtype)
        return tf.Variable(zeros) if variable else zeros

    with tf.device("CPU:0"):
        left = iter([made(*kind) for kind in kinds])
        standing_in = tf.nest.map_structure(lambda x: None if x is None else next(left), arguments)
        tf.function(traced, autograph=False).get_concrete_function(*standing_in)(*standing_in)
