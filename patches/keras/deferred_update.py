"""The update of the weights as the last thing in a step, after that of the metrics; see `step_retry`, `metrics_along`.

Keras' own `train_step` applies gradients before it updates metrics, and neither looks at what the other changes. So the
order may be turned around, and what the metrics have become can travel after the gradients, or along with them.

Relies on (Keras 3.3 to 3.15): `Model.train_step`, `compute_metrics` and `get_metrics_result`, public, and
`Trainer._compile_metrics` with its `_user_metrics` and `_user_weighted_metrics`, private: where they are not there,
nothing is put off.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from matex_tf.patches.across_rows.keras_losses import of_keras
from matex_tf.patches.common import batch_share

_Gate = Callable[[list[Any]], list[Any]]
Exchange = Callable[[Sequence[Any], Sequence[str]], list[Any]]
_Exchanging = Callable[[Exchange, Sequence[Any], Sequence[str]], list[Any]]


class DeferredUpdates:
    """The updates of one step that is traced; its `StepShare` holds them."""

    def __init__(self, optimizer: Any, exchanging: _Exchanging):
        """Args: optimizer: whose updates wait for the end of the step; None for none. exchanging: see below."""
        self._optimizer = optimizer
        self._exchanging = exchanging
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

    def exchange(self, exchange: Exchange, gradients: Sequence[Any], names: Sequence[str]) -> list[Any]:
        """Exchange gradients, with what belongs to it at the end of the step."""
        return self._exchanging(exchange, gradients, names) if self._at_end else exchange(gradients, names)


@contextlib.contextmanager
def update_behind_metrics(model: Any, exchanging: _Exchanging) -> Iterator[None]:
    """Trace a step such that gradients are exchanged and applied at the end of this block, where that is the same.

    Args:
        exchanging: gets the function that exchanges gradients, these, and their names; gives those that shall be
            applied.
    """
    share = batch_share.of_step()
    assert share is not None
    updates = DeferredUpdates(model.optimizer if _in_any_order(model) else None, exchanging)
    with batch_share.within(dataclasses.replace(share, updates=updates)):
        yield
        updates.run()


def defer_update(optimizer: Any, update: Callable[[], Any]) -> bool:
    """Have an update of an optimizer run at the end of the step that is traced, where it may be."""
    updates = _of_step()
    return updates is not None and updates.defer(optimizer, update)


def exchange(exchange: Exchange, gradients: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Exchange gradients, and what else the step that is traced exchanges with them; gives those that shall be applied.

    Args: exchange: does so with the gradients alone. gradients, names: its arguments.
    """
    updates = _of_step()
    return exchange(gradients, names) if updates is None else updates.exchange(exchange, gradients, names)


def then(gate: _Gate) -> _Exchanging:
    """For `update_behind_metrics`: something that comes after the exchange.

    Args:
        gate: gets the exchanged gradients, and gives those that shall be applied, once it is done with its own work.
    """
    return lambda exchange, gradients, names: gate(exchange(gradients, names))


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
