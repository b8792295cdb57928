"""Calls on a few rows: each rank computes them whole where that takes less time than sharing the rows out.

`predict`, `predict_on_batch` and `test_on_batch` of a decoding loop come a thousand times with a row or a batch. Such a
call then meets nobody. Whether it does is decided alike on every rank, from what all have seen: the first, second,
fourth, eighth, … call on such rows (their number, columns, and the power of two of their size) is shared out as every
other call, and at its end the ranks agree. Each rank computes the calls up to the next of these whole where

- each rank held the same rows, in a script that gives none of its own (`DataSet`, --rows) and asks for no rank;
- the graph draws no random numbers and runs no Python, so that it gives the same everywhere;
- the rows of the other ranks take no longer to compute than what sharing out took beside the computing.

Relies on (Keras 3.3 to 3.15): `Trainer.test_on_batch`, which resets the metrics where its code says so, and
`Metric.reset_state` (public).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings, strategies
from matex_tf.core import world
from matex_tf.patches.across_rows import keras_losses, models, own_metrics
from matex_tf.patches.common import batch_share, keras_lines, model_state, row_slicing
from matex_tf.patches.files import callers
from matex_tf.patches.keras import metrics, weights
from matex_tf.patches.steps.step_part import StepPart, StepRun
from matex_tf.state import notes

#: A call on more rows than these is shared out always: one batch of Keras' own size.
ROWS = 32

_RANDOM = ("Random", "Rng", "Multinomial", "PyFunc")
_ASSIGNS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")


@dataclasses.dataclass
class Seen:
    """Calls on rows of one kind.

    Attributes:
        count: how many there have been in which every rank had the same rows.
        whole: whether each rank computes the next ones whole.
    """

    count: int = 0
    whole: bool = False


@dataclasses.dataclass
class Call:
    """One call.

    Attributes:
        rows: how many it is on.
        whole: whether this rank computes all of its rows, and meets nobody.
        same: whether every rank turned out to have the same rows; the same on every rank.
        alike: whether the graph that was run gives the same on every rank; asked once the ranks are to agree.
        computing: seconds in which this rank computed its part of the rows.
    """

    seen: Seen
    rows: int
    whole: bool
    same: bool = False
    alike: Callable[[], bool] = bool
    computing: float = 0.0
    begun: float = dataclasses.field(default_factory=time.perf_counter)

    def end(self) -> None:
        """The call has returned; where the ranks are to agree, they do.

        Calls in which the rows differ are not counted: some ranks may have too many of them for a `Call`.
        """
        if not self.whole and not self.same:
            return
        self.seen.count += 1
        if self.whole or not _to_agree(self.seen.count):
            return
        total = time.perf_counter() - self.begun
        alike = self.seen.count > 1 and self.alike()  # the first call makes graphs, and tells no time
        mine = alike, self.computing, total - self.computing
        everyone = world.current().allgather(mine, "agree whether each rank computes small calls whole")
        same, computing, sharing = zip(*everyone, strict=True)
        self.seen.whole = all(same) and pays(self.rows, max(computing), max(sharing))


def _to_agree(number: int) -> bool:
    """Whether this call on rows of a kind is the 1st, 2nd, 4th, 8th, …"""
    return number & (number - 1) == 0


def pays(rows: int, computing: float, sharing: float) -> bool:
    """Whether rows of other ranks cost less than sharing out.

    Args:
        rows: of the call; of fewer than ranks each computes one, and so would it whole.
        computing: seconds for the rows of one rank.
        sharing: seconds of a shared call beside it.
    """
    mine = math.ceil(rows / world.current().size)
    return (rows / mine - 1) * computing <= sharing


def begin(model: Any, kind: str, data: Any) -> Call | None:
    """A call on `data` begins; None where it is none that a rank may compute by itself.

    Args:
        model: of Keras. kind: the name of the method.
        data: arrays and tensors as the script has given them, with Nones among them.
    """
    leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
    if not leaves or not all(isinstance(leaf, (np.ndarray, tf.Tensor)) and len(leaf.shape) for leaf in leaves):
        return None
    rows = {int(leaf.shape[0]) for leaf in leaves}
    if len(rows) > 1 or not 0 < max(rows) <= ROWS or not _rows_are_shared() or not _weights_are_alike(model):
        return None
    if model_state.of(model).rows_apart or weights.lying_in_parts(model):
        return None
    columns = tuple((str(leaf.dtype), len(leaf.shape), int(np.prod(leaf.shape)).bit_length()) for leaf in leaves)
    seen = model_state.of(model).small_calls.setdefault((kind, max(rows), columns), Seen())
    return Call(seen, max(rows), seen.whole and not _to_agree(seen.count + 1))


def rows_are_apart(model: Any) -> None:
    """Every rank has found that a call was on rows of each rank's own: from now on all calls are shared out.

    To be called by every rank, whatever its rows are: what is computed whole must be the same on all of them.
    """
    state = model_state.of(model)
    state.rows_apart = True
    state.small_calls.clear()


def _rows_are_shared() -> bool:
    """Whether the script can hardly have rows of a rank's own; the same on every rank."""
    ranks = world.current()
    return not (
        ranks.is_single
        or ranks.guard is not None
        or settings.current().reproducible > 0
        or ranks.holds_shard
        or settings.current().rows != "auto"
        or callers.asks()
    )


def _weights_are_alike(model: Any) -> bool:
    return strategies.current().replicas_identical and not model_state.of(model).unmerged and not model.run_eagerly


def only_counts(model: Any, graph: Any) -> bool:
    """Whether the `graph` of a `test_step` of a `model` gives the same on every rank, and changes metrics alone, which
    add up."""
    resets = "reset_metrics" in type(model).test_on_batch.__code__.co_names
    return (
        resets
        and models.has_no_effects(graph, besides=_ASSIGNS)
        and not any(part in kind for kind in models.kinds_of_ops(graph) for part in _RANDOM)
        and all(
            keras_losses.of_keras(type(metric).reset_state)
            and notes.found(metric, own_metrics.Kind) is not own_metrics.Kind.AVERAGED
            for metric in metrics.leaves(model)
        )
    )


class WholeTest:
    """A model's `test_step` on all rows of a batch, by each rank, after its metrics have been reset.

    Metrics hold the state of all ranks then, as they do after each step of a model whose steps are partitioned.
    """

    def __init__(self, model: Any):
        self.model = model
        self._compiled: Any = None

    def alike(self, data: Any) -> bool:
        """Whether it gives the same on every rank; makes its graph."""
        spec = row_slicing.relaxed(data, row_slicing.sliceable(data))
        with self._traced():
            return only_counts(self.model, self._function().get_concrete_function(spec).graph)

    def __call__(self, data: Any) -> Any:
        """Its logs."""
        metrics.restore_local(self.model)
        with self._traced():
            logs = self._function()(data)
        if not model_state.of(self.model).whole:
            metrics.take_as_merged(self.model)
        return keras_lines.flat(logs) if isinstance(logs, dict) else logs

    def _traced(self) -> contextlib.AbstractContextManager[Any]:
        """The world in which the step is traced, as all steps of the model are."""
        return world.alone() if model_state.of(self.model).whole else contextlib.nullcontext()

    def _function(self) -> Any:
        if self._compiled is None:
            test_step = self.model.test_step

            @tf.autograph.experimental.do_not_convert
            def step(data: Any) -> Any:
                with batch_share.hidden():
                    return test_step(data)

            self._compiled = tf.function(step, reduce_retracing=True)
        return self._compiled


class Timing(StepPart):
    """How long the step of a small call computes decides who makes the next one."""

    def note(self, run: StepRun) -> None:
        call = model_state.of(self.model).call
        if call is not None:
            call.computing = run.computing
