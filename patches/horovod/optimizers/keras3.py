"""`DistributedOptimizer` for the optimizers of Keras 3.

An optimizer of the same class and the same settings, which reduces gradients over the ranks before it clips and applies
them. It is saved as the optimizer that it was made from, so that a model can be loaded without these names.

Relies on (Keras 3.3 to 3.15): `Optimizer.apply(grads, trainable_variables)`, `from_config`, `get_config`, `iterations`,
`LossScaleOptimizer.apply` and `inner_optimizer` (public); `Optimizer._trainable_variables`,
`TensorFlowTrainer.make_train_function` (private or half so); (Keras 3.5 to 3.15) `Optimizer._iterations`, private.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
import wrapt

from matex_tf.patches.common import log_once
from matex_tf.patches.horovod.core import basics
from matex_tf.patches.horovod.core.keras2 import VariableList
from matex_tf.patches.horovod.optimizers.aggregation import Aggregation
from matex_tf.patches.horovod.optimizers.gradients import Reduction, variable_name

_STATE = "_matex_horovod"


class _How:
    """How one optimizer gets its gradients."""

    def __init__(self, reduction: Reduction, passes: int, average: bool):
        self.reduction = reduction
        self.local: set[int] = set()
        self.aggregation = Aggregation(passes, average, reduction.sparse_as_dense) if passes != 1 else None
        self.reduced_outside = 0
        self.reduced: list[Any] = []  # by `_compute_gradients`, and not applied yet

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks."""
        local = [id(variable) in self.local for variable in variables]
        shaped = list(gradients)
        for gradient, variable in zip(shaped, variables, strict=True):
            if tf.is_tensor(gradient) and not isinstance(gradient, tf.IndexedSlices):
                gradient.set_shape(variable.shape)
        return self.reduction(shaped, [variable_name(variable) for variable in variables], local)


class _Distributed:
    """What an optimizer gets on top of its own class.

    Attributes:
        matex_made: how it was asked for; of the class, so that an optimizer made `from_config` is distributed, too.
    """

    matex_made: tuple[Reduction, int, bool]

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduce gradients over the ranks, then apply them."""
        how = _how(self)
        apply = super().apply  # type: ignore[misc]
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)  # type: ignore[attr-defined]
        gradients = list(grads)
        if not gradients:
            return None
        if not self.built:  # type: ignore[attr-defined]
            with tf.init_scope():
                self.build(variables)  # type: ignore[attr-defined]
        if how.aggregation is None:
            mine, how.reduced = how.reduced, []
            done = how.reduced_outside or (mine and {id(g) for g in gradients} <= {id(g) for g in mine})
            return apply(gradients if done else how.reduce(gradients, variables), trainable_variables)
        how.aggregation.add(gradients, [variable.shape for variable in variables])

        def update(sums: list[Any]) -> None:
            apply(sums if how.reduced_outside else how.reduce(sums, variables), trainable_variables)

        def skip() -> None:
            _steps_of(self).assign_add(1)

        how.aggregation.step(update, skip)
        return None

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> list[Any]:
        """Gradients and variables in pairs; the gradients are those of all ranks, which `apply_gradients` leaves alone.

        With `backward_passes_per_step` they are the rank's own, and `apply_gradients` does the rest.

        Args:
            loss: a tensor that `tape` has seen, or a function that gives it.
            var_list: the variables, or a function that gives them.
            grad_loss: the gradient of the loss; 1 where it is None.
        """
        if callable(loss):
            with tf.GradientTape() as tape:
                loss = loss()
        if tape is None:
            raise ValueError("`tape` is required when a `Tensor` loss is passed.")
        variables = list(var_list() if callable(var_list) else var_list)
        gradients = tape.gradient(loss, variables, grad_loss)
        how = _how(self)
        if how.aggregation is None:
            gradients = how.reduced = how.reduce(gradients, variables)
        return list(zip(gradients, variables, strict=True))

    @property
    def _agg_helper(self) -> Aggregation | None:
        return _how(self).aggregation

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of this variable to the rank."""
        _how(self).local.add(id(var))

    @property
    def variables(self) -> Any:
        """The optimizer's variables; may be called, too."""
        return VariableList(super().variables)  # type: ignore[misc]


def is_distributed(optimizer: Any) -> bool:
    """Whether an optimizer, or the one that it scales losses for, reduces gradients over ranks."""
    return isinstance(optimizer, _Distributed) or is_distributed_inside(optimizer)


def is_distributed_inside(optimizer: Any) -> bool:
    """Whether the optimizer inside a `LossScaleOptimizer` does."""
    return isinstance(getattr(optimizer, "inner_optimizer", None), _Distributed)


def _how(optimizer: Any) -> _How:
    """How this optimizer gets its gradients; not among what Keras tracks."""
    if _STATE not in optimizer.__dict__:
        optimizer.__dict__[_STATE] = _How(*optimizer.matex_made)
    return optimizer.__dict__[_STATE]


def _steps_of(optimizer: Any) -> Any:
    """The variable in which an optimizer counts steps; in Keras 3.3 and 3.4 it is `iterations` itself."""
    return optimizer._iterations if hasattr(optimizer, "_iterations") else optimizer.iterations


def _class_of(kind: type, *made: Any) -> Any:
    """A class of the same name that reduces gradients."""
    return type(kind.__name__, (_Distributed, kind), {"__module__": kind.__module__, "matex_made": made})


def distributed(optimizer: Any, reduction: Reduction, passes: int = 1, average: bool = False) -> Any:
    """A new optimizer of the same class and settings that reduces gradients over the ranks.

    Args:
        optimizer: of Keras; its state, if it has any, is not taken over.
        reduction: how gradients are reduced.
        passes, average: see `Aggregation`.
    """
    if is_distributed(optimizer):
        raise ValueError(f"{optimizer.name} is a DistributedOptimizer already.")
    return _class_of(type(optimizer), reduction, passes, average).from_config(optimizer.get_config())


def distribute(optimizer: Any, reduction: Reduction) -> None:
    """Let an optimizer itself, with the state that it has, reduce gradients over the ranks."""
    optimizer.__class__ = _class_of(type(optimizer), reduction, 1, False)


@contextlib.contextmanager
def _reduced_outside(how: _How) -> Iterator[None]:
    how.reduced_outside += 1
    try:
        yield
    finally:
        how.reduced_outside -= 1


def _scale_losses(wrapped: Any, scaler: Any, args: Any, kwargs: Any) -> Any:
    """Reduce before it is decided whether a step is finite, or ranks would diverge."""
    inner = getattr(scaler, "inner_optimizer", None)
    if not is_distributed_inside(scaler):
        return wrapped(*args, **kwargs)
    how = _how(inner)

    def arguments(grads: Any, trainable_variables: Any = None) -> tuple[list[Any], Any]:
        return list(grads), trainable_variables

    grads, given = arguments(*args, **kwargs)
    reduced = how.reduce(grads, list(scaler._trainable_variables if given is None else given))
    with _reduced_outside(how):
        return wrapped(reduced, given)


def _without_xla(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    """Collectives leave the step, which XLA cannot compile."""
    if basics.is_initialized() and basics.size() > 1 and model.jit_compile:
        log_once.log(f"{model.name} trains without XLA, which cannot compile what goes between ranks")
        model.jit_compile = False
    return wrapped(*args, **kwargs)


wrapt.wrap_function_wrapper("keras.src.optimizers.loss_scale_optimizer", "LossScaleOptimizer.apply", _scale_losses)
wrapt.wrap_function_wrapper(
    "keras.src.backend.tensorflow.trainer", "TensorFlowTrainer.make_train_function", _without_xla
)
assert keras.backend.backend() == "tensorflow", "these names are for Keras on TensorFlow"
