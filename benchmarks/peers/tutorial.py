"""The program that tutorials write for translation with attention, in Keras and TensorFlow.

Of the sizes and parameters of `ours`, but with the decoder's loop written out in a training step of its own.
Shapes: B batch, S source, T target, C channels, U units, V vocabulary.
"""

import keras
import tensorflow as tf

from peers.keras_loop import Training


def create(case, settings):
    """The program of a case; `settings["jit"]` is `jit_compile`."""
    model = Translator(case["sizes"], case["dropout"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adamw", loss=loss, jit_compile=settings["jit"])

    def pair(arrays):
        return (arrays["source"], arrays["target"]), arrays["labels"]

    source, target = (tf.zeros((1, case["length"]), "int32") for _ in range(2))
    model((source, target))
    return Training(model, case, pair)


class AdditiveAttention(keras.layers.Layer):
    """`softmax(v tanh(W s + U h))`-weighted mean of the memory."""

    def __init__(self, units):
        super().__init__()
        self.query, self.key = (keras.layers.Dense(units, use_bias=False) for _ in range(2))
        self.score = keras.layers.Dense(1, use_bias=False)

    def call(self, state, memory, keys):
        """The context `(B, U)` for a state `(B, U)`, a memory `(B, S, U)` and its keys."""
        scores = self.score(tf.tanh(self.query(state)[:, None] + keys))  # (B, S, 1)
        return tf.reduce_sum(tf.nn.softmax(scores, axis=1) * memory, axis=1)  # (B, U)


class Translator(keras.Model):
    """A GRU reads the source; a GRU cell writes the target, one step after the other."""

    def __init__(self, sizes, dropout):
        super().__init__()
        units, dim, vocab_size = sizes["units"], sizes["dim"], sizes["vocab_size"]
        self.source_embedding = keras.layers.Embedding(vocab_size, dim)
        self.target_embedding = keras.layers.Embedding(vocab_size, dim)
        self.encoder = keras.layers.GRU(units, return_sequences=True, return_state=True)
        self.bridge = keras.layers.Dense(units, activation="tanh")
        self.attention = AdditiveAttention(units)
        self.cell = keras.layers.GRUCell(units)
        self.mix = keras.layers.Dense(dim, activation="tanh")
        self.drop = keras.layers.Dropout(dropout)

    def call(self, inputs, training=None):
        """Logits `(B, T, V)` for source `(B, S)` and target `(B, T)`."""
        source, target = inputs
        memory, last = self.encoder(self.drop(self.source_embedding(source), training=training))
        keys = self.attention.key(memory)  # (B, S, U)
        state = self.bridge(last)  # (B, U)
        words = self.drop(self.target_embedding(target), training=training)  # (B, T, C)
        outputs = []
        for t in range(target.shape[1]):
            context = self.attention(state, memory, keys)
            _, state = self.cell(tf.concat([words[:, t], context], axis=-1), state)
            outputs.append(self._logits(tf.concat([state, context], axis=-1), training))
        return tf.stack(outputs, axis=1)

    def _logits(self, x, training):
        x = self.drop(self.mix(x), training=training)  # (B, C)
        return tf.matmul(x, self.target_embedding.embeddings, transpose_b=True)  # (B, V)

    def train_step(self, batch):
        """One step, written out."""
        inputs, labels = batch
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=labels, y_pred=self(inputs, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}
