"""Gradients of several backward passes, added up on the rank before they are reduced over ranks and applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class Aggregation:
    """The sums of one optimizer.

    Args:
        passes: backward passes for each update.
        average: whether an update gets their mean instead of their sum.
        sparse_as_dense: whether `tf.IndexedSlices` are made dense; otherwise they are refused.
    """

    def __init__(self, passes: int, average: bool, sparse_as_dense: bool):
        if passes < 1:
            raise ValueError("backward_passes_per_step must be > 0")
        self.passes, self._average, self._sparse_as_dense = passes, average, sparse_as_dense
        self.counter: tf.Variable | None = None
        self._sums: list[tf.Variable | None] = []

    def add(self, gradients: Sequence[Any], shapes: Sequence[Any]) -> list[tf.Operation]:
        """Add the gradients of a pass; returns what must have run before `step` (in a graph of a session).

        Args:
            gradients: the same ones in every pass; Nones among them stay.
            shapes: of the variables.

        Raises:
            ValueError: one is sparse.
        """
        dense = [self._dense(gradient) for gradient in gradients]
        if self.counter is None:
            with tf.init_scope():
                self.counter = _variable(tf.zeros([], tf.int32))
                self._sums = [
                    None if gradient is None else _variable(tf.zeros(shape, gradient.dtype))
                    for gradient, shape in zip(dense, shapes, strict=True)
                ]
        done = [
            total.assign_add(gradient)
            for total, gradient in zip(self._sums, dense, strict=True)
            if total is not None and gradient is not None
        ]
        return [*done, self.counter.assign_add(1)]

    def step(self, update: Callable[[list[Any]], Any], skip: Callable[[], Any]) -> Any:
        """Call `update` with the sums in every `passes`-th pass, `skip` in the others."""
        count = self.counter
        assert count is not None

        def last() -> tf.Tensor:
            sums = [None if total is None else total.read_value() for total in self._sums]
            if self._average:
                sums = [None if total is None else total / tf.cast(self.passes, total.dtype) for total in sums]
            done = update(sums)
            with tf.control_dependencies([] if tf.executing_eagerly() or done is None else [done]):
                zeroed = [total.assign(tf.zeros_like(total)) for total in self._sums if total is not None]
                zeroed.append(count.assign(0))
            with tf.control_dependencies([] if tf.executing_eagerly() else zeroed):
                return tf.constant(True)

        def other() -> tf.Tensor:
            done = skip()
            with tf.control_dependencies([] if tf.executing_eagerly() or done is None else [done]):
                return tf.constant(False)

        return tf.cond(tf.equal(count, self.passes), last, other)

    def _dense(self, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self._sparse_as_dense:
            raise ValueError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False."
            )
        return tf.convert_to_tensor(gradient)


def _variable(value: tf.Tensor) -> tf.Variable:
    if tf.executing_eagerly():
        return tf.Variable(value, trainable=False)
    local = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
    return tf.compat.v1.Variable(value, trainable=False, collections=local, use_resource=True)
