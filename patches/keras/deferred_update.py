"""The update of the weights as the last thing in a step, after that of the metrics; see `step_retry`.

Keras' own `train_step` applies gradients before it updates metrics, and neither looks at what the other changes. So the
order may be turned around, and what the metrics have become can travel after the gradients.

Relies on (Keras 3.3 to 3.15): `Model.train_step`, `compute_metrics` and `get_metrics_result`, public, and
`Trainer._compile_metrics` with its `_user_metrics` and `_user_weighted_metrics`, private: where they are not there,
nothing is put off.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from matex_tf.patches.across_rows.keras_losses import of_keras
from matex_tf.patches.common import batch_share

_Gate = Callable[[list[Any]], list[Any]]


class DeferredUpdates:
    """The updates of one step that is traced; its `StepShare` holds them."""

    def __init__(self, optimizer: Any, gate: _Gate):
        """Args: optimizer: whose updates wait for the end of the step; None for none. gate: see below."""
        self._optimizer = optimizer
        self._gate = gate
        self._waiting: list[Callable[[], Any]] = []
        self._at_end = False

    def defer(self, optimizer: Any, update: Callable[[], Any]) -> bool:
        """Have an update of an optimizer run at the end of the step, where it may be."""
        if self._at_end or optimizer is None or optimizer is not self._optimizer:
            return False
        self._waiting.append(update)
        return True

    def run(self) -> None:
        """The end of the step."""
        self._at_end = True
        for update in self._waiting:
            update()

    def through_gate(self, exchanged: list[Any]) -> list[Any]:
        """Gradients that have been exchanged, as they shall be applied."""
        return self._gate(exchanged) if self._at_end else exchanged


@contextlib.contextmanager
def update_behind_metrics(model: Any, gate: _Gate) -> Iterator[None]:
    """Trace a step such that gradients are exchanged and applied at the end of this block, where that is the same.

    Args:
        gate: gets the exchanged gradients, and gives those that shall be applied, once it is done with its own work.
    """
    share = batch_share.of_step()
    assert share is not None
    updates = DeferredUpdates(model.optimizer if _in_any_order(model) else None, gate)
    with batch_share.within(dataclasses.replace(share, updates=updates)):
        yield
        updates.run()


def defer_update(optimizer: Any, update: Callable[[], Any]) -> bool:
    """Have an update of an optimizer run at the end of the step that is traced, where it may be."""
    updates = _of_step()
    return updates is not None and updates.defer(optimizer, update)


def through_gate(exchanged: list[Any]) -> list[Any]:
    """Gradients that have been exchanged, as they shall be applied."""
    updates = _of_step()
    return exchanged if updates is None else updates.through_gate(exchanged)


def _of_step() -> DeferredUpdates | None:
    share = batch_share.of_step()
    return None if share is None else share.updates


def after(before: list[tf.Tensor], gradients: list[Any]) -> list[Any]:
    """The same gradients, which are there once the tensors `before` are."""
    with tf.control_dependencies(before):
        return [
            None if one is None else tf.nest.map_structure(tf.identity, one, expand_composites=True)
            for one in gradients
        ]


def _in_any_order(model: Any) -> bool:
    """Whether nothing between the update of weights and that of metrics can tell which comes first."""
    steps = ("train_step", "compute_metrics", "get_metrics_result")
    if any(name in vars(model) or not of_keras(getattr(type(model), name)) for name in steps):
        return False
    holder = next((c for c in type(model.optimizer).__mro__ if "apply" in vars(c)), None)
    if holder is None or holder.__name__ != "BaseOptimizer":  # one that wraps another may skip updates
        return False
    compiled = model._compile_metrics
    if compiled is None:
        return True
    if not hasattr(compiled, "_user_metrics") or not hasattr(compiled, "_user_weighted_metrics"):
        return False
    # A metric of the script's own could look at the weights, or at the learning rate.
    given = tf.nest.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
    return all(one is None or isinstance(one, str) or of_keras(getattr(one, "_fn", one)) for one in given)
