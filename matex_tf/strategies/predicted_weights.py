"""The weights that an optimizer will have come to when a gradient is applied, as far as one rank can tell.

A gradient that is applied some updates late should be that of the weights of then, not of now: with momentum, or with
a rate that is near to the largest, a training that learns from old weights swings ever further out (SpecTrain, arXiv
1809.02839, section 4; Kosson et al., arXiv 2003.11666). What lies between is the updates of the gradients that are
under way. Nobody has their averages yet, but each rank has its own part of them. So it applies those to its weights
and slots, computes a step there, and takes them back: on one rank that is what comes, on many it is off by how much
the gradient of a rank's rows differs from that of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class PredictedWeights:
    """Lets the variables of an optimizer be others for a step."""

    def __init__(self, changed: Sequence[Any]):
        """Args: changed: all that an update changes: weights, and the optimizer's own."""
        self.variables = [one if isinstance(one, tf.Variable) else one.value for one in changed]
        with tf.init_scope():  # one for all graphs of the step
            self._true = [tf.Variable(tf.zeros(one.shape, one.dtype), trainable=False) for one in self.variables]
        self._put_aside = tf.function(lambda: _copy(self.variables, self._true))
        self._elsewhere = False

    def is_of(self, changed: Sequence[Any]) -> bool:
        """Whether an update changes these variables still."""
        known = [one if isinstance(one, tf.Variable) else one.value for one in changed]
        return [id(one) for one in known] == [id(one) for one in self.variables]

    def put(self, updates: Sequence[Callable[[], Any]]) -> None:
        """Let the variables have what updates make of them, until they are taken back."""
        self._put_aside()
        self._elsewhere = True
        for update in updates:
            update()

    def end(self) -> bool:
        """Whether the variables are to be taken back; asked once."""
        elsewhere, self._elsewhere = self._elsewhere, False
        return elsewhere

    def take_back(self) -> None:
        """In a graph or in eager mode: the variables get what they had before `put`."""
        _copy(self._true, self.variables)

    def take_back_if(self, elsewhere: tf.Tensor) -> None:
        """In a graph: the same, where a boolean scalar says so."""

        def take_back() -> tf.Tensor:
            self.take_back()
            return tf.constant(True)

        tf.cond(elsewhere, take_back, lambda: tf.constant(False))


def _copy(ones: Sequence[tf.Variable], others: Sequence[tf.Variable]) -> None:
    for one, other in zip(ones, others, strict=True):
        other.assign(one)
