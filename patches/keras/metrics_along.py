"""The states of the metrics, added up over the ranks along with the gradients of a step: no message of their own.

Where weights may be updated after the metrics are (see `deferred_update`), what the metrics have become is one more
small tensor of the exchange, in its last bucket. The logs of a batch are made of that sum, see `fit.batch_logs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from matex_tf.patches.common import batch_share, keras_lines
from matex_tf.patches.keras import metrics
from matex_tf.patches.keras.deferred_update import Exchange
from matex_tf.strategies.sync import ALONG

#: Elements of the states up to which they travel along; those of a large confusion matrix are sent where they are read.
MOST = 4096

_NAME = f"{ALONG}the state of the metrics"


class MetricsAlong:
    """For the graph of a training step.

    Attributes:
        total: float32, flat: the state of `metrics.adding` over all ranks, after the step; None where it cannot travel
            along. A tensor of the graph that was traced last.
    """

    def __init__(self, model: Any):
        self._model = model
        self._before: dict[int, tf.Tensor] = {}
        self.total: tf.Tensor | None = None

    def begin(self) -> None:
        """A graph is traced."""
        self._before, self.total = {}, None
        self.note()

    def note(self) -> None:
        """Read the metrics that have come up, before the step changes them."""
        for metric in metrics.leaves(self._model):
            for variable in keras_lines.states(metric):
                if id(variable) not in self._before:
                    self._before[id(variable)] = tf.identity(keras_lines.tensor(variable))

    def exchange(self, exchange: Exchange, gradients: Sequence[Any], names: Sequence[str]) -> list[Any]:
        """See `deferred_update.update_behind_metrics`."""
        own = self._own() if any(map(_is_usual, gradients)) else None
        if own is None:
            return exchange(gradients, names)
        self.total, *exchanged = exchange([own, *gradients], [_NAME, *names])
        return exchanged

    def _own(self) -> tf.Tensor | None:
        """This rank's part of the sum: what its metrics have become; those of a ghost are as before."""
        variables, share = metrics.adding(self._model), batch_share.of_step()
        if share is None or not variables or sum(math.prod(variable.shape) for variable in variables) > MOST:
            return None
        if not all(id(variable) in self._before and variable.dtype == "float32" for variable in variables):
            return None
        after = [tf.reshape(variable.value, [-1]) for variable in variables]
        before = [tf.reshape(self._before[id(variable)], [-1]) for variable in variables]
        return tf.where(share.rows > 0, tf.concat(after, 0), tf.concat(before, 0))


def _is_usual(gradient: Any) -> bool:
    """Whether a gradient travels in buckets of float32."""
    return tf.is_tensor(gradient) and not isinstance(gradient, tf.IndexedSlices) and gradient.dtype == tf.float32
