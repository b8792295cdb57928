"""Results of metrics that a step computes with: those of all ranks, as one rank has them at that point of the step.

A result that a step returns as it is costs nothing: it is read again from the states of all ranks, see `metrics.merge`.
A step may also compute with one: `{"twice": 2 * logs["loss"]}`, a branch, the weight of a loss, a metric of metrics.
Then the states are added up where the result is asked for, in the step. Whether it does is seen in its graph, which is
traced once more then. In a step that runs eagerly and is not Keras' own, and in one that is a tf.function, every
result is whole.

Where ranks train by themselves (gossip, local) results are the rank's own, and with groups those of the group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from matex_tf.exchange import tf_op, virtual_ranks
from matex_tf.patches.common import batch_share, keras_lines
from matex_tf.patches.keras import metrics

WHAT = "merge metrics"


class WholeResults:
    """For one step, as it is traced or run.

    Args:
        model: its metrics are those of the step.
    """

    def __init__(self, model: Any):
        self._model = model
        self._before: dict[int, tf.Tensor] = {}
        self._shares: dict[int | None, batch_share.StepShare] = {}

    def note(self) -> None:
        """Read the metrics that have come up, before the step changes them."""
        for metric in metrics.leaves(self._model):
            for variable in keras_lines.states(metric):
                if id(variable) not in self._before:
                    self._before[id(variable)] = tf.identity(keras_lines.tensor(variable))

    def of_rows(self, share: batch_share.StepShare) -> None:
        """What follows is computed of these rows, by this rank or by one of its virtual ranks."""
        self._shares[_place()] = share

    def result(self, metric: Any, result: Callable[[], Any]) -> Any:
        """What a metric says of the states of all ranks. Collective.

        Args:
            metric: of Keras. result: its `result`, bound, as it is without this.
        """
        share = self._shares.get(_place())
        if share is None or not metrics.is_additive(metric):  # virtual ranks have ended: the states are merged
            return result()

        def counted(variable: Any, value: Any) -> Any:
            before = self._before.get(id(variable), tf.zeros_like(value))
            # A virtual rank begins with nothing; the rows of a ghost do not count.
            return tf.where(share.rows > 0, value, before if _place() is None else tf.zeros_like(value))

        def with_base(variable: Any, total: Any) -> Any:
            return total if _place() is None else total + self._before.get(id(variable), tf.zeros_like(total))

        return of_sums(metric, keras_lines.states(metric), result, counted, with_base)


def _place() -> int | None:
    part = virtual_ranks.current()
    return None if part is None else part.place


def of_sums(
    metric: Any,
    states: list[Any],
    result: Callable[[], Any],
    counted: Callable[[Any, Any], Any] = lambda variable, value: value,
    complete: Callable[[Any, Any], Any] = lambda variable, total: total,
) -> Any:
    """What a metric says of its states, added up over the ranks; it keeps its own. Collective.

    Args:
        states: its variables.
        result: of the metric, as it is.
        counted: from a variable and its value to what counts of it in the sum.
        complete: from a variable and the sum to what the metric shall see.
    """
    own = [(variable, tf.identity(keras_lines.tensor(variable))) for variable in states]
    added = [(variable, value) for variable, value in own if variable.dtype != "bool"]
    labels = [f"{metric.name}: {keras_lines.path(variable)}" for variable, _ in added]
    sums = tf_op.sum_over_ranks([counted(variable, value) for variable, value in added], WHAT, labels)
    for (variable, _), total in zip(added, sums, strict=True):
        variable.assign(complete(variable, total))
    found = tf.nest.map_structure(metrics.fixed, result())
    for variable, value in own:
        variable.assign(value)
    return found


def always(model: Any, name: str) -> bool:
    """Whether results are whole in a step from the first one on: where no graph of it shows what it does with them.

    Args:
        model: of Keras. name: of the method that is the step.
    """
    step = getattr(type(model), name)
    # What a tf.function has traced it keeps, with tensors of the graph around it: it cannot be traced once more.
    return hasattr(step, "get_concrete_function") or (model.run_eagerly and not keras_lines.of_keras(step))


def computed_with(results: list[tuple[Any, Any]]) -> bool:
    """Whether a step has done more with results of metrics than to return them, as its graph shows.

    Args:
        results: tensors, and the metrics that gave them, as `metrics.watching` notes them.
    """
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    tensors = [one for value, _ in results for one in tf.nest.flatten(value) if tf.is_symbolic_tensor(one)]
    return any(one.graph is not graph or one.consumers() for one in tensors)
