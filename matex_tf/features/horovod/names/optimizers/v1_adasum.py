"""`DistributedOptimizer(op=hvd.Adasum)` for the optimizers of `tf.compat.v1.train`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from matex_tf.features.horovod.names.core import ops
from matex_tf.features.horovod.names.core.basics import Adasum
from matex_tf.features.horovod.names.core.process_sets import global_process_set
from matex_tf.features.horovod.names.optimizers import gradients


class DistributedAdasumOptimizer(tf.compat.v1.train.Optimizer):
    """An optimizer that lets another one move the variables, and combines the moves of all ranks by Adasum.

    Each rank applies its own gradients. In every last of `passes` steps the ranks combine how far their variables have
    moved since they were last the same: what one optimizer makes of a gradient, with momentum and the like, and not the
    gradient itself, is what Adasum takes for a direction (arXiv 2006.02924).

    Args:
        optimizer: of `tf.compat.v1.train`.
        compression: of the moves on their way.
        name, use_locking: see `tf.compat.v1.train.Optimizer`.
        passes: steps from one combination to the next.
    """

    def __init__(
        self, optimizer: Any, compression: Any, name: str | None = None, use_locking: bool = False, passes: int = 1
    ):
        super().__init__(name=name or f"DistributedDelta{type(optimizer).__name__}", use_locking=use_locking)
        if passes < 1:
            raise ValueError("backward_passes_per_step must be > 0")
        self._optimizer, self._compression, self._passes = optimizer, compression, passes
        self._steps: Any = None
        self._starts: dict[Any, Any] = {}

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Pairs of gradient and variable, the rank's own."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    @ops.as_it_is
    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Apply the rank's gradients, then combine the moves of all ranks.

        Args:
            grads_and_vars: pairs of a gradient of this rank, or None, and its variable.
            global_step: a variable that counts steps; None for none.
            name: of the op that does it, in the graph of a session.

        Raises:
            NotImplementedError: the number of ranks is not a power of 2.
        """
        pairs = list(grads_and_vars)
        moved = [variable for gradient, variable in pairs if gradient is not None]
        with tf.init_scope():
            starts = [self._start_of(variable) for variable in moved]
            if self._steps is None:
                self._steps = _variable(tf.zeros([], tf.int64), f"{self._name}/step_count")
        steps = self._steps

        # Variables that are no resources can be neither read nor written inside tf.cond: values go in and out.
        def read() -> list[tf.Tensor]:
            return [variable.read_value() for variable in moved]

        # The first step begins with what a broadcast may have put there since the variables were initialized.
        before, first = read(), tf.equal(steps.read_value(), 0)

        def begin() -> tf.Tensor:
            # A copy, as what is read of a variable that is no resource is its memory, which the optimizer writes to.
            copies = [tf.raw_ops.DeepCopy(x=value) for value in before]
            return _after([start.assign(value) for start, value in zip(starts, copies, strict=True)])

        begun = tf.cond(first, begin, lambda: tf.constant(True))
        with tf.control_dependencies(_graph_only([begun])):
            applied = self._optimizer.apply_gradients(pairs, global_step=global_step)
        with tf.control_dependencies(_graph_only([applied])):
            now, last = read(), tf.equal(steps.read_value() % self._passes, self._passes - 1)

        def combine() -> list[tf.Tensor]:
            moves = [value - start.read_value() for start, value in zip(starts, now, strict=True)]
            labels = [f"the move of {gradients.variable_name(variable)}" for variable in moved]
            sums = gradients.grouped(
                moves, Adasum, self._compression, 1.0, 1.0, None, global_process_set, labels
            )  # fmt: skip
            done = [start.assign_add(total) for start, total in zip(starts, sums, strict=True)]
            with tf.control_dependencies(_graph_only(done)):
                return [start.read_value() for start in starts]

        ends = tf.nest.flatten(tf.cond(last, combine, lambda: [tf.identity(value) for value in now]))
        assigned = [variable.assign(end) for variable, end in zip(moved, ends, strict=True)]
        with tf.control_dependencies(_graph_only(assigned)):
            counted = steps.assign_add(1)
        return None if tf.executing_eagerly() else tf.group(counted, name=name)

    def _start_of(self, variable: Any) -> Any:
        """The variable that keeps what another one was when all ranks had the same."""
        key = variable.ref()
        if key not in self._starts:
            label = gradients.variable_name(variable).partition(":")[0]
            self._starts[key] = _variable(tf.zeros(variable.shape, variable.dtype.base_dtype), f"{label}/delta_start")
        return self._starts[key]

    def get_slot(self, var: Any, name: str) -> Any:
        """The optimizer's slot `name` of the variable `var`; of "delta_start" that of its own, None where there is none
        yet.
        """
        return self._starts.get(var.ref()) if name == "delta_start" else self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """The optimizer's, and "delta_start"."""
        return ["delta_start", *self._optimizer.get_slot_names()]

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """The optimizer's."""
        return self._optimizer.variables(*args, **kwargs)


def _variable(value: tf.Tensor, name: str) -> Any:
    if tf.executing_eagerly():
        return tf.Variable(value, trainable=False, name=name.replace("/", "_"))
    return tf.compat.v1.Variable(value, trainable=False, use_resource=True, name=name)


def _graph_only(done: list[Any]) -> list[Any]:
    return [] if tf.executing_eagerly() else [one for one in done if one is not None]


def _after(done: list[Any]) -> tf.Tensor:
    with tf.control_dependencies(_graph_only(done)):
        return tf.constant(True)
