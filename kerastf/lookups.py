"""Rows of a matrix whose gradient joins that of a head that reads the whole matrix.

Shapes: N tokens, C channels, V vocabulary.
"""

import weakref

from keras import ops

from kerastf import compat, tracing


class _Loan:
    """A matrix that one head may take, within a graph."""

    def __init__(self, variable):
        self.variable = weakref.ref(variable)  # TensorFlow may keep a graph for ever
        self.matrix = None
        self.taken = False


def _loans(graph):
    """By the variable's id; kept by the graph itself, whose tensors they hold."""
    kept = tracing.kept(graph, "loans")
    if not kept:
        kept.append({})
    return kept[0]


def rows(variable, tokens):
    """The rows of a matrix `(V, C)` that tokens name, for integers of any shape.

    Why: where a tied head takes the matrix by `whole`, its gradient is as large as the matrix, and TensorFlow would
    write down one of that size for the rows, mostly zeros, and then the sum of both. Where a layer computes in half
    precision, Keras would round the whole matrix to read some rows.
    """
    tokens = ops.cast(tokens, "int32")
    loans = _loans(tracing.graph()) if tracing.trains_on_cpu() else None
    if loans is None or id(variable) in loans:
        return ops.take(variable, tokens, axis=0)
    own = compat.unrounded(variable)
    if own.dtype != "float32":
        return ops.take(variable, tokens, axis=0)
    import tensorflow as tf

    loan = loans[id(variable)] = _Loan(variable)

    @compat.custom_gradient
    def both(matrix):
        def gradient(of_rows, of_matrix):
            of_rows, named = tf.reshape(of_rows, (-1, matrix.shape[-1])), tf.reshape(tokens, (-1,))
            if not loan.taken:
                return tf.IndexedSlices(of_rows, named, tf.shape(matrix))
            return tf.raw_ops.InplaceAdd(x=of_matrix, i=named, v=of_rows)  # nobody else reads it

        return (tf.gather(matrix, tokens), tf.identity(matrix)), gradient

    found, loan.matrix = both(own)
    return ops.cast(found, variable.dtype)


def whole(variable):
    """The matrix itself, for a product whose gradient is written down once and read by nobody else."""
    loan = _loans(tracing.graph()).get(id(variable)) if tracing.trains_on_cpu() else None
    if loan is None or loan.taken or loan.variable() is not variable:
        return variable
    loan.taken = True
    return loan.matrix
