"""`DistributedOptimizer` for the optimizers of Keras 3.

Relies on (Keras 3.3 to 3.15): `Optimizer.apply(grads, trainable_variables)`, `iterations`, `LossScaleOptimizer.apply`
and `inner_optimizer` (public); `Optimizer._trainable_variables`, `Trainer.make_train_function` (private or
half so); (Keras 3.5 to 3.15) `Optimizer._iterations`, private.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
import wrapt
from keras.src.backend.tensorflow import trainer

from matex_tf.features.horovod.names.core.keras2 import VariableList
from matex_tf.features.horovod.names.optimizers import distributed
from matex_tf.patches.common import keras_lines


class Added(distributed.Distributed):
    """What an optimizer of Keras 3 gets on top of its own class."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduce gradients over the ranks, then apply them. With more than one backward pass for an update: in every
        last one, the sums of all.

        Args:
            grads: this rank's: tensors, `tf.IndexedSlices` or None.
            trainable_variables: that they are of, in the same order; None for those that the optimizer was built for.
        """
        how = distributed.how_of(self)
        apply = super().apply  # type: ignore[misc]
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)  # type: ignore[attr-defined]
        gradients = list(grads)
        if not gradients:
            return None
        if not self.built:  # type: ignore[attr-defined]
            with tf.init_scope():
                self.build(variables)  # type: ignore[attr-defined]
        if how.aggregation is None:
            reduced = gradients if how.are_reduced(gradients) else how.reduce(gradients, variables)
            return apply(reduced, trainable_variables)
        how.aggregation.add(gradients, [variable.shape for variable in variables])

        def update(sums: list[Any]) -> None:
            apply(sums if how.reduced_outside else how.reduce(sums, variables), trainable_variables)

        def skip() -> None:
            _steps_of(self).assign_add(1)

        how.aggregation.step(update, skip)
        return None

    @property
    def variables(self) -> Any:
        """The optimizer's variables; may be called, too."""
        return VariableList(super().variables)  # type: ignore[misc]


def _steps_of(optimizer: Any) -> Any:
    """The variable in which an optimizer counts steps; in Keras 3.3 and 3.4 it is `iterations` itself."""
    return optimizer._iterations if hasattr(optimizer, "_iterations") else optimizer.iterations


def _scale_losses(wrapped: Any, scaler: Any, args: Any, kwargs: Any) -> Any:
    """Reduce before it is decided whether a step is finite, or ranks would diverge."""
    inner = getattr(scaler, "inner_optimizer", None)
    if not distributed.is_distributed_inside(scaler):
        return wrapped(*args, **kwargs)
    how = distributed.how_of(inner)

    def arguments(grads: Any, trainable_variables: Any = None) -> tuple[list[Any], Any]:
        return list(grads), trainable_variables

    grads, given = arguments(*args, **kwargs)
    reduced = how.reduce(grads, list(scaler._trainable_variables if given is None else given))
    with distributed.reduced_outside(how):
        return wrapped(reduced, given)


wrapt.wrap_function_wrapper("keras.src.optimizers.loss_scale_optimizer", "LossScaleOptimizer.apply", _scale_losses)
wrapt.wrap_function_wrapper(trainer, f"{keras_lines.trainer(trainer)}.make_train_function", distributed.without_xla)
assert keras.backend.backend() == "tensorflow", "these names are for Keras on TensorFlow"
