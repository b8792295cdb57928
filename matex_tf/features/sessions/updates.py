"""Optimizers of tf.compat.v1: gradients are averaged over ranks, weighted by rows.

Where `compute_gradients` gives them, so that a script clips what one rank would clip; `apply_gradients` averages what
did not come from there. See `loops.gradient_updates` on averaging twice.

Relies on (TensorFlow 2.16 to 2.21): `tf.compat.v1.train.Optimizer.compute_gradients` and `apply_gradients`, public.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.features.sessions import exchange_order, feed_share
from matex_tf.patches.common import batch_share, wrapping
from matex_tf.patches.keras import optimizer
from matex_tf.patches.loops import gradient_updates as loop_updates
from matex_tf.patches.loops import position, replica_sync


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    wrapping.wrap(module, "compat.v1.train.Optimizer.compute_gradients", _compute)
    wrapping.wrap(module, "compat.v1.train.Optimizer.apply_gradients", _apply)
    loop_updates.average_sessions_by(lambda tensors, labels: _average(tensors, labels))


def in_session_graph() -> bool:
    """Whether ops are built for a session, and not for eager code or a tf.function."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


def _compute(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    pairs = wrapped(*args, **kwargs)
    return _averaged(pairs) if in_session_graph() else pairs


def _apply(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    pairs, rest, options = wrapping.taken(args, kwargs, grads_and_vars=())
    pairs = list(pairs)
    if not all(grad is None or optimizer.is_marked(grad) for grad, _ in pairs):
        if in_session_graph():
            pairs = _averaged(pairs)
        elif position.active():
            variables = [variable for _, variable in pairs]
            replica_sync.begin(variables)
            position.touch()
            averaged = optimizer.average([grad for grad, _ in pairs], variables)
            pairs = list(zip(averaged, variables, strict=True))
    return wrapped(pairs, *rest, **options)


def _averaged(pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    given = [(grad, variable) for grad, variable in pairs if grad is not None]
    grads = optimizer.shaped([grad for grad, _ in given], [variable for _, variable in given])
    averaged = iter(_average(grads, optimizer.paths([variable for _, variable in given])))
    return [(None if grad is None else optimizer.mark(next(averaged)), variable) for grad, variable in pairs]


def _average(grads: Sequence[Any], labels: Sequence[str]) -> list[Any]:
    """Build the ops that average gradients: the dense ones together, then the sparse ones one after the other."""
    grads = list(grads)
    sparse = [place for place, grad in enumerate(grads) if isinstance(grad, tf.IndexedSlices)]
    dense = [place for place in range(len(grads)) if place not in sparse]
    flat = [part for grad in grads for part in _tensors(grad)]

    def exchange() -> list[Any]:
        results: list[Any] = [None] * len(grads)
        before: list[Any] = []
        with batch_share.within(feed_share.in_graph()):
            for places in [dense] * bool(dense) + [[place] for place in sparse]:
                with tf.control_dependencies(before):
                    sums = optimizer.average_named([grads[p] for p in places], [labels[p] for p in places])
                for place, total in zip(places, sums, strict=True):
                    results[place] = total
                before = _tensors(sums[0])
        return [part for result in results for part in _tensors(result)]

    parts = iter(exchange_order.in_graph_order(flat, exchange))
    return [_put_back(grad, parts) for grad in grads]


def _tensors(grad: Any) -> list[Any]:
    return [grad.values, grad.indices] if isinstance(grad, tf.IndexedSlices) else [grad]


def _put_back(grad: Any, parts: Any) -> Any:
    if not isinstance(grad, tf.IndexedSlices):
        return next(parts)
    values = next(parts)
    return tf.IndexedSlices(values, next(parts), grad.dense_shape)
