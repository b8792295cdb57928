"""`DistributedOptimizer` for the optimizers of Keras 2, new and legacy, and for those that scale losses.

Relies on (tf_keras 2.16 to 2.21, Keras 2.13 to 2.15): `Optimizer.apply_gradients(grads_and_vars, ...)`, `build` and
`iterations` of new optimizers, `inner_optimizer` of `LossScaleOptimizer` (public); `_create_all_weights` of legacy
ones, `LossScaleOptimizerV3`, `Model.make_train_function` and `Model.jit_compile` (private or half so).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import wrapt

from matex_tf.features.horovod.names.optimizers import distributed
from matex_tf.features.horovod.names.optimizers.which_keras import keras
from matex_tf.patches.common import keras_lines


class Added(distributed.Distributed):
    """What an optimizer of Keras 2 gets on top of its own class."""

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduce gradients over the ranks, then apply them."""
        how = distributed.how_of(self)
        apply = super().apply_gradients  # type: ignore[misc]
        pairs = [(gradient, variable) for gradient, variable in grads_and_vars]
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        if all(gradient is None for gradient in gradients):
            return apply(pairs, *args, **kwargs)  # the optimizer says that there is nothing to do
        if how.aggregation is None:
            reduced = gradients if how.are_reduced(gradients) else how.reduce(gradients, variables)
            return apply(list(zip(reduced, variables, strict=True)), *args, **kwargs)
        with tf.init_scope():
            keras_lines.give_variables(self, variables)
        how.aggregation.add(gradients, [variable.shape for variable in variables])

        def update(sums: list[Any]) -> Any:
            reduced = sums if how.reduced_outside else how.reduce(sums, variables)
            return apply(list(zip(reduced, variables, strict=True)), *args, **kwargs)

        return how.aggregation.step(update, lambda: self.iterations.assign_add(1))  # type: ignore[attr-defined]


def _scale_losses(wrapped: Any, scaler: Any, args: Any, kwargs: Any) -> Any:
    """Reduce before it is decided whether a step is finite, or ranks would diverge."""
    if isinstance(scaler, distributed.Distributed) or not distributed.is_distributed_inside(scaler):
        return wrapped(*args, **kwargs)
    how = distributed.how_of(scaler.inner_optimizer)

    def arguments(grads_and_vars: Any, *rest: Any, **more: Any) -> tuple[list[Any], tuple[Any, ...], dict[str, Any]]:
        return list(grads_and_vars), rest, more

    pairs, rest, more = arguments(*args, **kwargs)
    variables = [variable for _, variable in pairs]
    reduced = how.reduce([gradient for gradient, _ in pairs], variables)
    with distributed.reduced_outside(how):
        return wrapped(list(zip(reduced, variables, strict=True)), *rest, **more)


_SCALING = f"{keras.__name__}.src.mixed_precision.loss_scale_optimizer"
for _name in ("LossScaleOptimizer", "LossScaleOptimizerV3"):
    wrapt.wrap_function_wrapper(_SCALING, f"{_name}.apply_gradients", _scale_losses)
wrapt.wrap_function_wrapper(
    f"{keras.__name__}.src.engine.training", "Model.make_train_function", distributed.without_xla
)
