"""`DistributedOptimizer` for the optimizers of `tf.compat.v1.train`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from matex_tf.features.horovod.names.optimizers.aggregation import Aggregation
from matex_tf.features.horovod.names.optimizers.gradients import Reduction, variable_name


class DistributedOptimizerV1(tf.compat.v1.train.Optimizer):
    """An optimizer that reduces the gradients of another over the ranks, in `compute_gradients`.

    With more than one backward pass for a step the gradients are reduced in `apply_gradients`, in every last pass.
    """

    def __init__(
        self, optimizer: Any, reduction: Reduction, name: str | None = None, use_locking: bool = False,
        passes: int = 1, average: bool = False,
    ):  # fmt: skip
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        if passes > 1 and tf.executing_eagerly():
            raise ValueError(
                "backward_passes_per_step > 1 is not yet supported for _LegacyOptimizer with eager execution."
            )
        self._optimizer, self._reduction = optimizer, reduction
        self._local: set[int] = set()
        self._aggregation = Aggregation(passes, average, reduction.sparse_as_dense) if passes != 1 else None

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of this variable to the rank."""
        self._local.add(id(var))

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Pairs of gradient and variable, as the optimizer has them, reduced over the ranks."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        return pairs if self._aggregation else self._reduced(*zip(*pairs, strict=True))

    def _reduced(self, gradients: Any, variables: Any) -> list[tuple[Any, Any]]:
        local = [id(variable) in self._local for variable in variables]
        names = [variable_name(variable) for variable in variables]
        return list(zip(self._reduction(gradients, names, local), variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Apply gradients, as the optimizer does. With more than one backward pass for an update: in every last one,
        the sums of all, reduced over the ranks. Args: see `tf.compat.v1.train.Optimizer.apply_gradients`.
        """
        if self._aggregation is None:
            return self._optimizer.apply_gradients(grads_and_vars, global_step=global_step, name=name)
        gradients, variables = zip(*grads_and_vars, strict=True)
        added = self._aggregation.add(gradients, [variable.shape for variable in variables])

        def update(sums: list[Any]) -> Any:
            return self._optimizer.apply_gradients(self._reduced(sums, variables), global_step=global_step, name=name)

        def skip() -> Any:
            return None if global_step is None else global_step.assign_add(1).op

        with tf.control_dependencies(added):
            return tf.group(self._aggregation.step(update, skip))

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """The optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """The optimizer's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """The optimizer's."""
        return self._optimizer.variables(*args, **kwargs)
