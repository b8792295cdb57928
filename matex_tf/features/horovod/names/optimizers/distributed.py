"""What `DistributedOptimizer` adds to an optimizer of any Keras: how its gradients become those of all ranks.

An optimizer of the same class and the same settings, which reduces gradients over the ranks before it clips and applies
them. It is saved as the optimizer that it was made from, so that a model can be loaded without these names.

Relies on (Keras 3.3 to 3.15; tf_keras 2.16 to 2.21): `from_config` and `get_config` of optimizers, public.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from matex_tf.features.horovod.names.core import basics
from matex_tf.features.horovod.names.optimizers.aggregation import Aggregation
from matex_tf.features.horovod.names.optimizers.gradients import Reduction, variable_name
from matex_tf.patches.common import log_once
from matex_tf.state import notes


class How(notes.Inside):
    """How one optimizer gets its gradients."""

    def __init__(self, reduction: Reduction, passes: int, average: bool):
        self.reduction = reduction
        self.local: set[int] = set()
        self.aggregation = Aggregation(passes, average, reduction.sparse_as_dense) if passes != 1 else None
        self.reduced_outside = 0
        self.reduced: list[Any] = []  # by `_compute_gradients`, and not applied yet

    def are_reduced(self, gradients: Sequence[Any]) -> bool:
        """Whether these gradients are those of all ranks already; asked once for those of `_compute_gradients`."""
        mine, self.reduced = self.reduced, []
        return bool(self.reduced_outside or (mine and {id(g) for g in gradients} <= {id(g) for g in mine}))

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks.

        Args:
            gradients: this rank's: tensors, `tf.IndexedSlices` or None, which stays.
            variables: that they are of, in the same order.
        """
        local = [id(variable) in self.local for variable in variables]
        shaped = list(gradients)
        for gradient, variable in zip(shaped, variables, strict=True):
            if tf.is_tensor(gradient) and not isinstance(gradient, tf.IndexedSlices):
                gradient.set_shape(variable.shape)
        return self.reduction(shaped, [variable_name(variable) for variable in variables], local)


class Distributed:
    """What an optimizer gets on top of its own class.

    Attributes:
        matex_made: how it was asked for; of the class, so that an optimizer made `from_config` is distributed, too.
    """

    matex_made: tuple[Reduction, int, bool]

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
        how = how_of(self)
        if how.aggregation is None:
            gradients = how.reduced = how.reduce(gradients, variables)
        return list(zip(gradients, variables, strict=True))

    @property
    def _agg_helper(self) -> Aggregation | None:
        return how_of(self).aggregation

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of this variable to the rank."""
        how_of(self).local.add(id(var))


def is_distributed(optimizer: Any) -> bool:
    """Whether an optimizer, or the one that it scales losses for, reduces gradients over ranks."""
    return isinstance(optimizer, Distributed) or is_distributed_inside(optimizer)


def is_distributed_inside(optimizer: Any) -> bool:
    """Whether the optimizer inside a `LossScaleOptimizer` does."""
    return isinstance(getattr(optimizer, "inner_optimizer", None), Distributed)


def how_of(optimizer: Any) -> How:
    """How this optimizer gets its gradients; not among what Keras tracks."""
    return notes.of(optimizer, How, lambda: How(*optimizer.matex_made))


def class_of(kind: type, added: type, *made: Any) -> Any:
    """A class of the same name that reduces gradients.

    Args:
        kind: the class of an optimizer.
        added: what it gets on top.
        made: how it was asked for, see `Distributed`.
    """
    return type(kind)(kind.__name__, (added, kind), {"__module__": kind.__module__, "matex_made": made})


def new_from(optimizer: Any, added: type, reduction: Reduction, passes: int = 1, average: bool = False) -> Any:
    """A new optimizer of the same class and settings that reduces gradients over the ranks.

    Args:
        optimizer: of Keras; its state, if it has any, is not taken over.
        added: what its class gets on top.
        reduction: how gradients are reduced.
        passes, average: see `Aggregation`.
    """
    if is_distributed(optimizer):
        raise ValueError(f"{optimizer.name} is a DistributedOptimizer already.")
    return class_of(type(optimizer), added, reduction, passes, average).from_config(optimizer.get_config())


def convert(optimizer: Any, added: type, reduction: Reduction) -> None:
    """Let an optimizer itself, with the state that it has, reduce gradients over the ranks.

    Args:
        optimizer: of Keras; it is changed in place.
        added: what its class gets on top.
        reduction: how gradients are reduced, in every step.
    """
    optimizer.__class__ = class_of(type(optimizer), added, reduction, 1, False)


def without_xla(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    """Around `make_train_function` of a `model`: collectives leave the step, which XLA cannot compile.

    Args:
        wrapped, args, kwargs: Keras' own, and what it is called with.
    """
    if basics.is_initialized() and basics.size() > 1 and getattr(model, "jit_compile", False):
        log_once.log(f"{model.name} trains without jit_compile: XLA cannot compile the exchange between ranks")
        model.jit_compile = False
    return wrapped(*args, **kwargs)


@contextlib.contextmanager
def reduced_outside(how: How) -> Iterator[None]:
    """Within this, gradients come reduced."""
    how.reduced_outside += 1
    try:
        yield
    finally:
        how.reduced_outside -= 1
