"""The loss of each row, as the compiled loss of a script computes it; and its gradient, scaled for some rows.

Rows are measured, and their gradients scaled, before class and sample weights and before the reduction, so that a
row's score is the network's and not that of its weight. A loss of a custom `train_step` is found if that calls
`compute_loss`, as Keras' guides have it.

Relies on (Keras 3.3 to 3.15): `CompileLoss.call`, its `_flat_losses` or `flat_losses` and `flat_loss_weights`;
`Loss.__call__(y_true, y_pred, sample_weight)` (public), which calls `losses.loss.reduce_weighted_values` (private).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.errors import MatexError
from matex_tf.features.samples.patches.importance import MEASURES, Outputs
from matex_tf.patches.across_rows import keras_losses
from matex_tf.patches.common import batch_share, wrapping
from matex_tf.patches.steps.row_choice import numbers_of

_WAY_OUT = "or leave out --prune-samples and --sample-scores (docs/samples.md)"


class RowLosses:
    """What a step finds out about its rows while it is traced, or runs eagerly.

    Args:
        tags: int64 (n,), see `row_choice`.
        rows: int32 scalar, how many of them count; 0 of a ghost.
        by: how rows are measured.
        factors: float32 (2,), the scale of gradients and the factor of logs, see `scoring.Epoch`; None where gradients
            are never scaled.
    """

    def __init__(self, tags: tf.Tensor, rows: tf.Tensor, by: str, factors: Any):
        self._tags, self._rows, self._by = tags, rows, by
        self._factors = factors
        self._measured: list[tuple[Any, tf.Tensor]] = []
        self._inside: Any = None  # the loss that is being computed: itself, y_true and y_pred
        self._computing = False
        self._scores: tf.Tensor | None = None

    def found(self, model: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Numbers and scores of the rows that count; int64 (rows,) and float32 (rows,).

        Raises:
            MatexError: no compiled loss was computed.
        """
        if self._scores is None:
            raise MatexError(
                f"--prune-samples: the train_step of {model.name} ({type(model).__name__}) computes no loss by "
                f"compute_loss, so nobody knows that of a row: let it call self.compute_loss(...), {_WAY_OUT}."
            )
        return numbers_of(self._tags)[: self._rows], tf.stop_gradient(self._scores)[: self._rows]

    def compute(self, compiled: Any, work: Any) -> Any:
        """The compiled loss of a model; the first of a step gives the scores of its rows.

        Args:
            compiled: Keras' `CompileLoss`, whose weights of losses count.
            work: computes it, by Keras' own code.
        """
        self._computing, self._measured = True, []
        try:
            result = work()
        finally:
            self._computing = False
        if self._measured and self._scores is None:  # of a step that has several losses, the first
            weights = _loss_weights(compiled)
            scores = [value * weights.get(id(loss), 1.0) for loss, value in self._measured]
            self._scores = tf.add_n(scores)
        return result

    def inside(self, loss: Any, truth: Any, predicted: Any, work: Any) -> Any:
        """One loss of a compiled loss.

        Args:
            loss: of Keras.
            truth, predicted: what it compares, (rows, …).
            work: computes it, by Keras' own code.

        Raises:
            MatexError: it does not show its values before it reduces them.
        """
        if not self._computing:
            return work()
        outer, count = self._inside, len(self._measured)
        self._inside = (loss, truth, predicted) if outer is None else None  # what a loss computes by others is its own
        try:
            result = work()
        finally:
            self._inside = outer
        if outer is None and len(self._measured) == count:
            raise MatexError(
                f"--prune-samples: loss {_name(loss)} reduces its values by itself, so nobody knows that of a row: let "
                f"it be a function, or a keras.Loss with `call`, that gives a value for each row, {_WAY_OUT}."
            )
        return result

    def scaled(self, values: Any, mask: Any) -> Any:
        """The values of a loss, with the gradients of some rows scaled, and measured; as they are outside of a compiled
        loss.

        Args:
            values: (rows, …), before weights and before they are reduced.
            mask: which of them count, of the same shape or fewer axes; None for all.

        Raises:
            MatexError: there is not one, or more, for each row.
        """
        if self._inside is None:
            return values
        loss, truth, predicted = self._inside
        if keras_losses.is_of_whole_batch(values):
            raise MatexError(
                f"--prune-samples: loss {_name(loss)} looks across the rows of a batch, so a row has no loss of its "
                f"own: leave out --prune-samples and --sample-scores (docs/samples.md)."
            )
        values = tf.convert_to_tensor(values)
        rows = self._tags.shape[0]
        if not values.shape.rank or (values.shape[0] is not None and rows is not None and values.shape[0] != rows):
            raise MatexError(
                f"--prune-samples: loss {_name(loss)} has no value for each row: it gives shape {values.shape}. Let it "
                f"give one for each row (without reduce_mean over the first axis), {_WAY_OUT}."
            )
        there, expected = tf.shape(values)[0], tf.shape(self._tags)[0]
        check = tf.debugging.Assert(
            tf.equal(there, expected),
            [f"--prune-samples: loss {_name(loss)} gives other than one value for each row; rows of it, of the batch:"]
            + [there, expected],
        )
        with tf.control_dependencies([] if check is None else [check]):
            values = tf.identity(values)
        self._measured.append((loss, MEASURES[self._by](Outputs(values, mask, loss, truth, predicted))))
        if self._factors is None:
            return values
        shape = tf.concat([[expected], tf.ones([values.shape.rank - 1], tf.int32)], 0)
        one = tf.ones([], values.dtype)
        scale, of_logs = tf.unstack(tf.cast(self._factors, values.dtype))
        gradient = tf.reshape(tf.where(self._tags < 0, scale, one), shape)
        return values * gradient + tf.stop_gradient(values * (gradient * of_logs - gradient))


def _name(loss: Any) -> str:
    return str(getattr(loss, "name", type(loss).__name__))


def _loss_weights(compiled: Any) -> dict[int, float]:
    """The weight of each loss of a model, by its id; of those that have one."""
    flat = getattr(compiled, "_flat_losses", None)
    if flat is None:
        pairs = [*zip(compiled.flat_losses, compiled.flat_loss_weights, strict=False)]
    else:
        pairs = [(one.loss, one.loss_weights) for one in flat]
    return {id(loss): weight for loss, weight in pairs if loss is not None and weight is not None}


def install(module: ModuleType) -> None:
    """Patch keras.src.trainers.compile_utils or keras.src.losses.loss."""
    if module.__name__.endswith("compile_utils"):
        wrapping.wrap(module, "CompileLoss.call", _compiled)
        return
    wrapping.method(module, "Loss.__call__", _one_loss)
    wrapping.wrap(module, "reduce_weighted_values", _reduce)


def _now() -> RowLosses | None:
    part = batch_share.of_step()
    return None if part is None else part.row_losses


def _compiled(wrapped: Any, compiled: Any, args: Any, kwargs: Any) -> Any:
    of_rows = _now()
    if of_rows is None:
        return wrapped(*args, **kwargs)
    return of_rows.compute(compiled, lambda: wrapped(*args, **kwargs))


def _one_loss(wrapped: Any, loss: Any, args: Any, kwargs: Any) -> Any:
    of_rows = _now()
    if of_rows is None:
        return wrapped(*args, **kwargs)
    truth, predicted = [*args, *(kwargs[name] for name in ("y_true", "y_pred") if name in kwargs)][:2]
    return of_rows.inside(loss, truth, predicted, lambda: wrapped(*args, **kwargs))


def _reduce(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    of_rows = _now()
    if of_rows is None:
        return wrapped(*args, **kwargs)
    return _reduced(of_rows, wrapped, *args, **kwargs)


def _reduced(
    of_rows: RowLosses,
    wrapped: Any,
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    return wrapped(of_rows.scaled(values, mask), sample_weight, mask, *args, **kwargs)
