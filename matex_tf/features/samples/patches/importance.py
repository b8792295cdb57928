"""How much a row matters, from what a step computes of it: a function for each word of `--prune-samples-by`.

Each gets the values of a loss and what it was computed of, and gives a number for each row; a high one is a row to
keep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from matex_tf.errors import MatexError

#: Losses whose outputs are classes, by what the names of their functions have in common, and how.
_SPARSE, _ONE_HOT, _BINARY = "sparse_categorical", "categorical", "binary"


class Outputs:
    """What a loss is computed of.

    Attributes:
        values: (rows, …), the loss before weights and reduction.
        mask: (rows, …), which of them count; None for all.
        loss: the loss of Keras.
        truth, predicted: what it compares.
    """

    def __init__(self, values: tf.Tensor, mask: Any, loss: Any, truth: Any, predicted: Any):
        self.values, self.mask = values, mask
        self.loss, self.truth, self.predicted = loss, truth, predicted

    def by_row(self, values: tf.Tensor) -> tf.Tensor:
        """The mean over all axes but the first, over entries that count; float32 (rows,)."""
        values = tf.cast(values, tf.float32)
        flat = tf.reshape(values, [tf.shape(values)[0], -1])
        if self.mask is None or len(self.mask.shape) != len(values.shape):
            return tf.reduce_mean(flat, 1)
        counts = tf.reshape(tf.cast(self.mask, tf.float32), tf.shape(flat))
        return tf.math.divide_no_nan(tf.reduce_sum(flat * counts, 1), tf.reduce_sum(counts, 1))

    def classes(self, by: str) -> tuple[tf.Tensor, tf.Tensor]:
        """The probabilities of classes, and those that they should be; float32 (rows, …, classes), each.

        Raises:
            MatexError: the loss is no crossentropy of classes.
        """
        function = str(getattr(getattr(self.loss, "fn", None), "__name__", ""))
        if "crossentropy" not in function or not any(kind in function for kind in (_SPARSE, _ONE_HOT, _BINARY)):
            raise MatexError(
                f"--prune-samples-by {by} needs a crossentropy of classes, and the loss is "
                f"{getattr(self.loss, 'name', self.loss)}: take --prune-samples-by loss."
            )
        logits = bool(getattr(self.loss, "_fn_kwargs", {}).get("from_logits", False))
        predicted, truth = tf.cast(self.predicted, tf.float32), tf.convert_to_tensor(self.truth)
        if _BINARY in function:
            predicted = tf.sigmoid(predicted) if logits else predicted
            truth = tf.reshape(tf.cast(truth, tf.float32), tf.shape(predicted))
            if predicted.shape[-1] == 1:
                return tf.concat([1 - predicted, predicted], -1), tf.concat([1 - truth, truth], -1)
            return predicted, truth
        if logits:
            predicted = tf.nn.softmax(predicted)
        else:
            predicted = tf.math.divide_no_nan(predicted, tf.reduce_sum(predicted, -1, keepdims=True))
        if _SPARSE in function:
            number = tf.reshape(tf.cast(truth, tf.int32), tf.shape(predicted)[:-1])
            truth = tf.one_hot(number, predicted.shape[-1])
        return predicted, tf.cast(truth, tf.float32)


def loss(of: Outputs) -> tf.Tensor:
    """The value of the loss."""
    return of.by_row(of.values)


def el2n(of: Outputs) -> tf.Tensor:
    """The length of the error of the probabilities (Paul et al., arXiv 2107.07075, section 2.3); of other losses than
    crossentropies, of what is predicted."""
    function = str(getattr(getattr(of.loss, "fn", None), "__name__", ""))
    if "crossentropy" in function:
        predicted, truth = of.classes("el2n")
    else:
        predicted = tf.cast(of.predicted, tf.float32)
        truth = tf.reshape(tf.cast(of.truth, tf.float32), tf.shape(predicted))
    return of.by_row(tf.norm(predicted - truth, axis=-1))


def forgetting(of: Outputs) -> tf.Tensor:
    """Whether the label is what is predicted, 1 or 0; `SampleScores` counts how often that is forgotten."""
    predicted, truth = of.classes("forgetting")
    right = tf.cast(tf.argmax(predicted, -1) == tf.argmax(truth, -1), tf.float32)
    return tf.cast(of.by_row(right) > 0.5, tf.float32)


def uncertainty(of: Outputs) -> tf.Tensor:
    """The entropy of the probabilities, in nats (Settles, Active Learning Literature Survey, 2009, section 3.1)."""
    predicted, _ = of.classes("uncertainty")
    return of.by_row(-tf.reduce_sum(tf.math.xlogy(predicted, predicted), -1))


#: By the word of the setting. Rows that are left out at random have their loss as a score.
MEASURES: dict[str, Callable[[Outputs], tf.Tensor]] = {
    "loss": loss,
    "el2n": el2n,
    "forgetting": forgetting,
    "uncertainty": uncertainty,
    "random": loss,
}
