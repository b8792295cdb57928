"""One step of a model on this rank's rows of a batch: what comes before it, and what is taken note of behind it."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import tensorflow as tf

from matex_tf import settings, strategies
from matex_tf.core import trace, world
from matex_tf.exchange import tf_op
from matex_tf.patches.across_rows import models
from matex_tf.patches.common import log_once, model_state, row_slicing, xla
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data.batches import Batch
from matex_tf.patches.fit.step import alike, partitioned_step, virtual_steps
from matex_tf.patches.fit.step.step_graphs import StepGraphs
from matex_tf.patches.keras import weights
from matex_tf.patches.recovery import step_retry, whole_step
from matex_tf.patches.recovery.whole_step import Values
from matex_tf.patches.steps import counting, row_choice
from matex_tf.patches.steps.step_part import StepParts, StepRun


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
        self._parts = StepParts(model, kind)
        self._unfinished: StepRun | None = None  # has run, and is not taken note of
        self.changing: list[Any] | None = None
        self.group: world.World | None = None

    def anew(self) -> SharedStep:
        """This step, of a model whose variables have got other shapes."""
        step = SharedStep(self.model, self.kind)
        step.steps, step._parts = self.steps, self._parts
        step.graphs.promise = self.graphs.promise
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
            again, logs = self._run(data, share, together)
            return self(data, share) if again else logs

    def _run(self, data: Any, share: RowRange, together: world.World) -> tuple[bool, Any]:
        """Run it with all its parts; whether it is to be run again, and its logs."""
        called, made = time.perf_counter(), self.graphs.made
        run = StepRun(self.model, self.kind, data, row_slicing.sliceable(data), share)
        with world.use(together):
            step = self.graphs.step(run.slices, data, share.total)
        run.function = self.graphs.functions.get(run.slices)
        run.first = self.kind == "train" and model_state.of(self.model).begin
        run.in_group = self.group is not None
        shown = together.location
        if run.slices in self.graphs.partitioned:
            how = self.graphs.partitioned[run.slices].how
            together.step_signature, shown = (*together.step_signature, how), f"{shown}, {how}"
        if run.first:
            self._begin(data, run.slices)
        run.whole = partitioned_step.applies(self.model)
        for before in self._parts.before:
            before(run)
        self._compute(run, step, shown, together)
        logs = self.finish()
        if self.graphs.made > made:
            run.tracing = time.perf_counter() - called
        if any(after(run) for after in self._parts.after):
            return True, logs
        if self.kind == "train" and not run.in_group:
            self.count()
        return False, logs

    def _compute(self, run: StepRun, step: Any, shown: str, together: world.World) -> None:
        """Run the compiled step of a run."""
        model = self.model
        numbers: Any = run.share
        if not run.whole:
            virtual = settings.current().reproducible
            numbers = tf.constant(virtual_steps.shares(run.share)) if virtual else row_slicing.as_tensor(run.share)
        with contextlib.ExitStack() as around:
            around.enter_context(trace.span("step", shown))
            around.enter_context(tf_op.collecting())
            around.enter_context(xla.called(model.jit_compile and not model.run_eagerly))
            for enter in self._parts.around:
                around.enter_context(enter(run))
            self._unfinished = run
            begun = time.perf_counter()
            with world.use(together):
                run.logs, run.scores = step(run.data, numbers)
            run.computing = time.perf_counter() - begun
            model_state.of(model).sources = self.graphs.sources.get(run.slices, {})

    def finish(self) -> Any:
        """Take note of a step that has run; its logs, also where an error of its exchange has been raised since."""
        run, self._unfinished = self._unfinished, None
        assert run is not None
        for note in self._parts.note:
            note(run)
        remembered = model_state.of(self.model)
        remembered.rows += run.share.rows
        remembered.rows_of_step = run.share.rows
        if self.kind == "train" and not remembered.whole:
            remembered.unmerged = True
        return run.logs

    def tell(self) -> None:
        """Say what there is to say of the step that has run. All ranks come here."""
        for tell in self._parts.tell:
            tell()

    def count(self) -> None:
        """Count a training step of all ranks, or of all groups on one batch; may end the script."""
        if counting.count():
            weights.merge_statistics(self.model)  # nothing may be under way when a process ends
            counting.end()

    def trace(self, data: Any) -> None:
        """Have the graph for batches of these columns."""
        self.graphs.step(row_slicing.sliceable(data), data, row_slicing.rows_of(data))

    def changes(self, data: Any) -> Values:
        """The variables that a partitioned step on such a batch may change."""
        slices = row_slicing.sliceable(data)
        self.graphs.step(slices, data, row_slicing.rows_of(data))
        return self.graphs.partitioned[slices].changes

    def begin(self, data: Any) -> None:
        """Before the first step of a training on which groups take parts of batches. All ranks come here.

        Args:
            data: a batch that they all have, or rows of the rank's own.
        """
        slices = row_slicing.sliceable(data)
        self._begin(data, slices)

    def _begin(self, data: Any, slices: tuple[bool, ...]) -> None:
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
            self.model._symbolic_build(data_batch=row_choice.untagged(data))
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
        models.tell(self.model, *row_choice.without_tags(data, slices))

    def _of_model(self) -> Any:
        """The step that the model has for a batch."""
        return self.model.train_step if self.kind == "train" else self.model.test_step
