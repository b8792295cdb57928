"""`train_on_batch` and `test_on_batch` in a loop to which ranks can come: compiled steps, see `growing_loop`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from matex_tf.core import world
from matex_tf.features.join.patches.growing_loop import Loops
from matex_tf.patches.common import model_state, row_slicing, under_way
from matex_tf.patches.fit.step.shared_step import SharedStep
from matex_tf.patches.loops.compiled import one_rank_trace
from matex_tf.patches.loops.compiled.traced import obstacle_of
from matex_tf.patches.recovery import whole_step
from matex_tf.patches.recovery.whole_step import Values
from matex_tf.state import notes


class _OnBatch:
    """The step of a model, as one that a script calls; see `growing_loop.Step`."""

    def __init__(self, step: SharedStep):
        self._step, self._changes = step, dict[int, Values]()
        self.name, self.obstacle = f"{step.kind}_on_batch of {step.model.name}", ""
        self.structure: Any = None

    def trace(self, data: Any) -> None:
        """Have the step for such a batch."""
        with under_way.having(one_rank=one_rank_trace.Trace()):
            changes = self._step.changes(data)
        traced = self._step.graphs.partitioned[row_slicing.sliceable(data)].traced
        self.structure = traced.structured_outputs
        if id(changes) not in self._changes:  # to look at a graph takes longer than a small step
            self._changes[id(changes)] = changes
            self.obstacle = self.obstacle or obstacle_of(traced.graph)

    @property
    def version(self) -> int:
        """See `growing_loop.Step`."""
        return len(self._changes)

    def changed(self) -> list[tuple[Any, Any, str]]:
        """See `growing_loop.Step`."""
        names = {id(one.value.handle): one.path for one in self._step.model.variables}
        return whole_step.changed_by(self._changes.values(), names, "a variable of the optimizer")


def on_batch(loops: Loops, step: SharedStep, data: Any, compute: Callable[[], Any]) -> Any:
    """Run a step on a batch that every rank has, or give what the job's has returned.

    Args:
        data: the batch, with tensors as leaves. compute: runs the step, and gives its logs: tensors by their names.

    Returns:
        The logs.
    """
    this = notes.of(step, _OnBatch, lambda: _OnBatch(step))
    with loops.trusted():
        this.trace(data)
        if world.of_job().arrival is not None and model_state.of(step.model).begin:
            step.begin(data)  # which the ranks of the job have done
        known: Any = this.structure if isinstance(this.structure, dict) else {"loss": this.structure}

        def flat() -> list[Any]:
            logs = compute()
            return [tf.convert_to_tensor(logs[name]) for name in sorted(logs)]

        given = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
        before = step.steps
        outputs = loops.call(this, given, flat, str, True)
        step.steps = before + 1
    return dict(zip(sorted(known), outputs, strict=True))
