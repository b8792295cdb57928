"""One step of a model on this rank's rows of a batch: what comes before it, and what is taken note of behind it."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings, strategies
from matex_tf.core import trace, world
from matex_tf.exchange import tf_op
from matex_tf.patches.across_rows import models
from matex_tf.patches.checking import one_rank
from matex_tf.patches.common import (
    keras_lines,
    log_once,
    model_state,
    row_slicing,
    run_state,
    seeds,
    xla,
)
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data.batches import Batch
from matex_tf.patches.fit.step import alike, first_step, partitioned_step, virtual_steps
from matex_tf.patches.fit.step.step_graphs import StepGraphs
from matex_tf.patches.keras import batch_norm, metrics, weights
from matex_tf.patches.recovery import resume_fit, step_retry, whole_step
from matex_tf.patches.recovery.whole_step import Values
from matex_tf.patches.samples import tagged_rows
from matex_tf.patches.samples.tagged_rows import TaggedRows
from matex_tf.watching.meter import Meter


class SharedStep:
    """A model's `train_step` or `test_step`, on this rank's rows of a batch.

    Attributes:
        changing: what `step_retry` has found out that steps change, once.
        graphs: what it computes.
        group: the ranks that make this step, where groups train apart; None where all do.
    """

    def __init__(self, model: Any, kind: str):
        """Args: kind: "train" or "test"."""
        self.model = model
        self.kind = kind
        self.steps = 0
        self.graphs = StepGraphs(model, kind, self._of_model)
        self._unfinished: Any = None  # logs and share of a step that has run and is not taken note of
        self.changing: list[Any] | None = None
        self.group: world.World | None = None
        self._check: one_rank.Check | None = None  # of the step that runs
        self._checked = False

    def anew(self) -> SharedStep:
        """This step, of a model whose variables have got other shapes."""
        step = SharedStep(self.model, self.kind)
        step.steps, step._checked, step.graphs.promised = self.steps, True, self.graphs.promised
        return step

    def of_batch(self, batch: Batch) -> Any:
        """Run the step on this rank's rows of a batch; again, where a rank dies in it and the others carry on."""
        guard = world.current().guard
        if guard is None:
            return self(*batch())
        known = model_state.of(self.model).whole is not None
        whole = partitioned_step.applies(self.model, None if known else batch()[0])
        return (whole_step if whole else step_retry).step(self.model, batch, self, guard)

    def __call__(self, data: Any, share: RowRange) -> Any:
        """Run the step on rows `share` of an eager batch; returns its logs, those of this rank."""
        self.steps += 1
        together = self.group or world.current()
        with together.during(f"{self.kind} step {self.steps} of {self.model.name}", f"a batch of {share.total} rows"):
            return self._run(data, share, together)

    def _run(self, data: Any, share: RowRange, together: world.World) -> Any:
        model, remembered = self.model, model_state.of(self.model)
        slices = row_slicing.sliceable(data)
        called, made = time.perf_counter(), self.graphs.made
        if remembered.before_merge is not None:
            metrics.restore_local(model)
        with world.use(together):
            step = self._step(slices, data, share.total)
        shown = together.location
        if slices in self.graphs.partitioned:
            how = self.graphs.partitioned[slices].how
            together.step_signature, shown = (*together.step_signature, how), f"{shown}, {how}"
        first = self.kind == "train" and remembered.begin
        if first:
            self._begin(data, slices, share)
        going_on = first and resume_fit.under_way(model)
        if going_on and going_on.replaying and going_on.restore(last=not model.run_eagerly):
            going_on = None
        virtual = settings.current().reproducible
        whole = partitioned_step.applies(model)
        if self.kind == "train" and remembered.accumulators_whole and not whole:
            weights.split_accumulators(model)
        numbers: Any = share
        if not whole:
            numbers = tf.constant(virtual_steps.shares(share)) if virtual else row_slicing.as_tensor(share)
        before = _values(self._put_back()) if share.rows == 0 and not virtual and not whole else None
        strategy = strategies.current()
        tagged = isinstance(data, TaggedRows) and remembered.samples is not None
        if tagged:
            remembered.samples.before_step()  # type: ignore[union-attr]
        if first and not self._checked and not going_on and not virtual and self.group is None and not whole:
            self._checked = True
            self._check = self._begin_check(data, slices, share)
        watching = self._check.watching() if self._check else contextlib.nullcontext()
        compiled = xla.called(model.jit_compile and not model.run_eagerly)
        with trace.span("step", shown), tf_op.collecting(), watching, compiled:
            if self.kind == "train":
                strategy.before_step(model)
            begun = time.perf_counter()
            self._unfinished = None, share, None
            with world.use(together):
                logs, scores = step(data, numbers)
            remembered.sources = self.graphs.sources.get(slices, {})
            if remembered.call is not None:
                remembered.call.computing = time.perf_counter() - begun
            if before is not None:
                metrics.put_back(model, before)
            if self.kind == "train":
                strategy.after_step(model)
            self._unfinished = logs, share, scores
        logs = self.finish()
        if going_on and going_on.replaying:  # with what an optimizer has made in a first, eager step
            going_on.restore(last=True)
            return self(data, share)
        if first and strategy.replicas_identical:
            weights.check_alike(model)
        meter = run_state.current().part(Meter)
        if self.kind == "train":
            meter.count(share.total)
        if self.graphs.made > made:
            meter.has_traced(time.perf_counter() - called, steps=int(self.kind == "train"))
        if self.kind == "train" and self.group is None:
            self.count()
        return logs

    def finish(self) -> Any:
        """Take note of a step that has run; its logs, also where an error of its exchange has been raised since."""
        (logs, share, scores), self._unfinished = self._unfinished, None
        remembered = model_state.of(self.model)
        if scores is not None and remembered.samples is not None:
            remembered.samples.note(scores)
        remembered.rows += share.rows
        remembered.rows_of_step = share.rows
        if self.kind == "train" and not remembered.whole:
            remembered.unmerged = True
        return logs

    def tell(self) -> None:
        """Say so where the step that has run is not that of one rank. All ranks come here."""
        check, self._check = self._check, None
        if check is not None and (reason := check.tell()):
            one_rank.say_why_not(check.name, reason)

    def count(self) -> None:
        """Count a training step of all ranks, or of all groups on one batch; may end the script."""
        _count_step(self.model)

    def trace(self, data: Any) -> None:
        """Have the graph for batches of these columns."""
        self._step(row_slicing.sliceable(data), data, row_slicing.rows_of(data))

    def changes(self, data: Any) -> Values:
        """The variables that a partitioned step on such a batch may change."""
        slices = row_slicing.sliceable(data)
        self._step(slices, data, row_slicing.rows_of(data))
        return self.graphs.partitioned[slices].changes

    def begin(self, data: Any) -> None:
        """Before the first step of a training on which groups take parts of batches. All ranks come here.

        Args:
            data: a batch that they all have, or rows of the rank's own.
        """
        slices = row_slicing.sliceable(data)
        self._begin(data, slices, RowRange(0, 1, 1, 1, 0))

    def _begin(self, data: Any, slices: tuple[bool, ...], share: RowRange) -> None:
        """Before the first step: the ranks compare batches and models, and take rank 0's weights."""
        model_state.of(self.model).begin = False
        ranks = world.current()
        ranks.barrier("compare the columns of the data", row_slicing.describe(data))
        if self.model.run_eagerly and not self.model.built:
            self._build(data)
        alike.check(self.model)
        weights.broadcast(self.model)
        self._look_across_rows(data, slices)
        trainable, state = weights.trained_by_steps(self.model)
        strategies.current().note_progress(self.model, [*state, *weights.progress_of(self.model)])
        strategies.current().begin(self.model, trainable, state)

    def _build(self, data: Any) -> None:
        """Create the variables of a model that runs eagerly before its first step, where it can be done."""
        try:
            self.model._symbolic_build(data_batch=tagged_rows.untagged(data))
        except (ValueError, RuntimeError, TypeError, AttributeError, NotImplementedError):
            self._tell_not_built()

    def _tell_not_built(self) -> None:
        log_once.log(
            f"{self.model.name} cannot be built before its first step; its initial weights are alike where they come "
            "from the seeds, and are compared after the step."
        )

    def _look_across_rows(self, data: Any, slices: tuple[bool, ...]) -> None:
        if partitioned_step.applies(self.model):
            return  # whatever it looks across, it is right
        models.tell(self.model, *tagged_rows.without_tags(data, slices))

    def _begin_check(self, data: Any, slices: tuple[bool, ...], share: RowRange) -> one_rank.Check | None:
        return first_step.begin(self.model, self.graphs.functions.get(slices), data, slices, share)

    def _of_model(self) -> Any:
        """The step that the model has for a batch."""
        return self.model.train_step if self.kind == "train" else self.model.test_step

    def _step(self, slices: tuple[bool, ...], data: Any, total: int) -> Any:
        return self.graphs.step(slices, data, total)

    def _put_back(self) -> list[Any]:
        """The variables that a step on a ghost's row must not change: metrics, moving statistics."""
        model = self.model
        found = [variable for metric in metrics.leaves(model) for variable in keras_lines.states(metric)]
        # Statistics over the rows of all ranks are right on a ghost too, and so is what follows from weights alone.
        right = {id(v) for layer in model._flatten_layers() if batch_norm.over_all_rows(layer) for v in layer.variables}
        right.update(id(layer.vector_u) for layer in model._flatten_layers() if hasattr(layer, "vector_u"))
        others = keras_lines.variables(model, "non_trainable_variables")
        kept = [variable for variable in others if id(variable) not in right]
        # Generators draw on a ghost as on every rank.
        return [*found, *(variable for variable in kept if not seeds.is_generator_state(variable))]


def _count_step(model: Any) -> None:
    """Count a training step, of whatever model. End the script after as many as the settings say.

    Every rank counts the same steps.

    Raises:
        SystemExit: this was the last one.
    """
    run = run_state.current()
    run.trained += 1
    if run.trained == settings.current().steps:
        weights.merge_statistics(model)  # nothing may be under way when a process ends
        log_once.log(f"the script was ended after {run.trained} training step{'s' * (run.trained > 1)} (--steps)")
        raise SystemExit(0)


def _values(variables: list[Any]) -> list[tuple[Any, np.ndarray]]:
    return [(variable, np.asarray(variable.numpy())) for variable in variables]
