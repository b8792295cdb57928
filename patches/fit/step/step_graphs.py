"""What a step computes of this rank's rows of a batch, as a graph for batches of these columns, or eagerly."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from matex_tf import settings, strategies
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.patches.across_rows.keras_losses import of_keras
from matex_tf.patches.common import batch_share, keras_lines, log_once, model_state, row_slicing, sharing_report, xla
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.fit.step import alike, first_step, one_rank_shapes, partitioned_step, virtual_steps
from matex_tf.patches.keras import distribution, metrics, sum_loss, weights, whole_results
from matex_tf.patches.recovery import whole_step
from matex_tf.patches.shards import variable as in_parts
from matex_tf.patches.steps import row_choice
from matex_tf.patches.steps.row_choice import RowLosses, TaggedRows

#: Which tensors of a batch are cut by rows, see `row_slicing.sliceable`.
Slices = tuple[bool, ...]
#: From a batch and the numbers of this rank's share of it to: logs; scores of rows, if they are kept.
Step = Callable[[Any, Any], tuple[Any, Any]]


class StepGraphs:
    """The functions that compute a model's step.

    Attributes:
        kind: "train" or "test".
        promise: what the pipeline promises of its batches; None where a batch is given by itself.
        sources: by the slices of a batch, which metric gives which log; see `ModelState`.
        functions: by the same, those that TensorFlow has compiled.
        partitioned: by the same, those that are partitioned.
    """

    def __init__(self, model: Any, kind: str, model_step: Callable[[], Any]):
        """Args: kind: "train" or "test". model_step: gives the step that the model has for a batch."""
        self._model, self.kind, self._model_step = model, kind, model_step
        self.promise: one_rank_shapes.Promise | None = None
        self.sources: dict[Slices, dict[str, Any]] = {}
        self.functions: dict[Slices, Any] = {}
        self.partitioned: dict[Slices, partitioned_step.PartitionedStep] = {}
        self._whole_results = whole_results.always(model, f"{kind}_step")
        self._made: dict[tuple[Slices, int], Step] = {}
        self._known: list[Any] = []  # see `virtual_steps.known`
        self._first: int | None = None  # the rows of the first batch

    @property
    def made(self) -> int:
        """How many steps there are: one that has just been made was traced, which takes time."""
        return len(self._made)

    def step(self, slices: Slices, data: Any, total: int) -> Step:
        """The step for batches of these columns.

        Args:
            slices: see `row_slicing.sliceable`.
            data: one of them; `total`: its rows on all ranks.
        """
        if self._first is None:
            self._first = total
        if partitioned_step.applies(self._model, data):
            return self._partitioned(slices, data, total)
        if self.kind == "train" and settings.current().shard != "none" and not world.current().is_single:
            raise MatexError(
                f"--shard {settings.current().shard} is for steps that are rebuilt for rows, and those of "
                f"{self._model.name} are not: {partitioned_step.why_not(self._model)}. Change that, or leave out "
                "--shard."
            )
        if held := weights.lying_in_parts(self._model):
            in_parts.join(held)
            if distribution.divided(self._model):
                log_once.log(f"{distribution.WHOLE}: {self._model.name}: {partitioned_step.why_not(self._model)}")
        parts = 0
        if settings.current().reproducible:  # as many virtual ranks as this rank has now
            parts = len(virtual_steps.shares(RowRange(0, 1, 1, 1, 0)))
        if (slices, parts) not in self._made:
            self._made[slices, parts] = self._make(slices, data, total, parts)
            if parts and not self._model.run_eagerly and self._known != virtual_steps.known(self._model):
                # The step has made metrics, or found out how they add up.
                self._made[slices, parts] = self._make(slices, data, total, parts)
        return self._made[slices, parts]

    def _partitioned(self, slices: Slices, data: Any, total: int) -> Step:
        """The step of one rank, rebuilt for this rank's rows."""
        key = slices, -1
        if key not in self._made:
            sharing_report.shared(training=self.kind == "train")
            if self.kind == "train":
                self._build(data)
            name = f"{'the training' if self.kind == 'train' else 'the test'} step of {self._model.name}"
            counting = whole_step.counting(self._model)
            step = partitioned_step.PartitionedStep(
                self._model_step(),
                name,
                slices,
                counting,
                slots=lambda: weights.in_parts_of(self._model),
                sums=self._sums,
                by_xla=bool(self._model.jit_compile),
            )
            self.partitioned[slices] = step

            def run(data: Any, share: Any) -> Any:
                return step(data, share), None

            self._made[key] = run
            if self.kind == "train" and model_state.of(self._model).begin:
                self._into_parts()
        self.partitioned[slices].make(data, self._built_with(slices, total), self._traced_with, self.promise)
        return self._made[key]

    def _build(self, data: Any) -> None:
        """Have a model make the variables of its optimizer and metrics before its step is traced, where Keras' code
        alone computes: TensorFlow traces a function twice that makes variables, and such code shows no difference."""
        model, optimizer = self._model, self._model.optimizer
        own = not of_keras(getattr(optimizer, "inner_optimizer", optimizer)) or first_step.has_own_code(model)
        if own or not model.built or keras_lines.is_keras_2(model) or weights.has_parts(model):
            return
        import keras

        @tf.function(autograph=False)
        def build() -> None:  # in a graph: what an optimizer assigns as it is built is lost there, as in plain Keras
            with keras.name_scope(optimizer.name, caller=optimizer):  # as `Optimizer.apply` does it
                optimizer.build(model.trainable_variables)

        with contextlib.suppress(Exception), world.alone():  # what cannot be built so is built by the step
            if not optimizer.built:
                build.get_concrete_function()
            model._symbolic_build(data_batch=row_choice.untagged(data))

    def _into_parts(self) -> None:
        """Have what shall lie in parts so before the step is traced, once it was compared."""
        model = self._model
        if weights.lying_in_parts(model):
            alike.check(model)
        if weights.has_parts(model):
            weights.into_parts(model, "train_step" not in vars(model) and of_keras(type(model).train_step))

    def _sums(self) -> weights.Sums | None:
        """The gradients that the model's optimizers accumulate, of which each rank may hold a part."""
        if self.kind != "train" or weights.has_parts(self._model):
            return None
        return weights.Sums(self._model)

    def _built_with(self, slices: Slices, total: int) -> one_rank_shapes.Rows:
        """For each leaf of a batch, the rows with which one rank would build layers."""
        return [total] * len(slices) if self.promise is None else self.promise.rows

    @property
    def _traced_with(self) -> int | None:
        """The rows of the batch with which one rank would have traced the step first."""
        return self._first if self.promise is None else None

    def _make(self, slices: Slices, data: Any, total: int, parts: int) -> Step:
        sharing_report.shared(training=self.kind == "train")
        built_with = self._built_with(slices, total)
        make = functools.partial(self._of_parts, parts=parts) if parts else self._of_rows
        if self._model.run_eagerly:
            return make(slices, built_with)
        known = self._whole_results
        made = self._compiled(make(slices, built_with), slices, data, parts)
        if self._whole_results != known:  # the graph has shown that it computes with results of metrics
            made = self._compiled(make(slices, built_with), slices, data, parts)
        return made

    def _of_rows(self, slices: Slices, built_with: Any) -> Step:
        """The step on this rank's rows."""
        model, training, model_step = self._model, self.kind == "train", self._model_step()

        @tf.autograph.experimental.do_not_convert
        def step(data: Any, numbers: Any) -> Any:
            low, high, rows, of_all, first = tf.unstack(tf.convert_to_tensor(numbers))
            mine = row_slicing.take(data, slices, low, high)
            apart = training and not strategies.current().averages_gradients
            of_rows = self._row_losses(mine, rows)
            share = batch_share.StepShare(rows, of_all, high - low, first, apart=apart, row_losses=of_rows)
            with contextlib.ExitStack() as inside:
                inside.enter_context(batch_share.within(share))
                whole = self._results_of()
                if whole is None:
                    watching = metrics.watching(model)
                else:
                    whole.of_rows(share)
                    watching = metrics.watching(model, whole.note, whole.result)
                results = inside.enter_context(watching)
                inside.enter_context(xla.compiled(model.jit_compile))  # the updates that wait for the end too
                if whole is not None:
                    whole.note()
                if not model.run_eagerly:
                    inside.enter_context(one_rank_shapes.tracing(mine, built_with, self._traced_with))
                inside.enter_context(sum_loss.computed_by(model, training))
                logs = model_step(row_choice.untagged(mine))
                self._look(results)
                logs = sum_loss.in_logs(logs)
            self.sources[slices] = _sources(logs, results)
            return logs, None if of_rows is None else of_rows.found(model)

        return step

    def _of_parts(self, slices: Slices, built_with: Any, parts: int) -> Step:
        """The step on the rows of each of this rank's virtual ranks, one after the other."""
        model, model_step = self._model, self._model_step()

        @tf.autograph.experimental.do_not_convert
        def step(data: Any, numbers: Any) -> Any:
            numbers = tf.ensure_shape(numbers, [parts, 5])
            with contextlib.ExitStack() as inside:
                shares = [tf.unstack(own) for own in tf.unstack(numbers)]
                mine = [row_slicing.take(data, slices, low, high) for low, high, *_ in shares]
                whole = self._results_of()
                if whole is None:
                    results = inside.enter_context(metrics.watching(model))
                else:
                    results = inside.enter_context(metrics.watching(model, whole.note, whole.result))
                    whole.note()
                for own in mine:
                    if not model.run_eagerly:
                        inside.enter_context(one_rank_shapes.tracing(own, built_with, self._traced_with))

                every = [self._row_losses(own, own_share[2]) for own, own_share in zip(mine, shares, strict=True)]

                def work(place: int) -> Any:
                    low, high, rows, of_all, first = shares[place]
                    share = batch_share.StepShare(rows, of_all, high - low, first, row_losses=every[place])
                    if whole is not None:
                        whole.of_rows(share)
                    with batch_share.within(share):
                        return model_step(row_choice.untagged(mine[place]))

                logs, self._known = virtual_steps.run(model, numbers, work, results)
                self._look(results)
            self.sources[slices] = _sources(logs, results)
            scores = [of_rows.found(model) for of_rows in every if of_rows is not None]
            return logs, tuple(tf.concat(parts, 0) for parts in zip(*scores, strict=True)) or None

        return step

    def _compiled(self, step: Step, slices: Slices, data: Any, parts: int) -> Step:
        if self._model.jit_compile and parts:
            log_once.log("jit_compile is off: with --reproducible sums have one order, and XLA takes another.")
        compiled = tf.function(step, reduce_retracing=True)
        spec = row_slicing.relaxed(data, slices)
        of_numbers = tf.TensorSpec([parts, 5] if parts else [5], tf.int32)
        self.functions[slices] = compiled.get_concrete_function(spec, of_numbers)
        # One graph for tensors of several ranks would not know where rows are.
        functions: dict[tuple[int | None, ...], Any] = {row_slicing.ranks(data): compiled}

        def call(data: Any, numbers: Any) -> Any:
            ranks = row_slicing.ranks(data)
            if ranks not in functions:
                functions[ranks] = tf.function(step, reduce_retracing=True)
            return functions[ranks](data, numbers)

        return call

    def _results_of(self) -> whole_results.WholeResults | None:
        """What makes results of metrics whole inside of the step, where it computes with them."""
        others = settings.current().reproducible or not world.current().is_single
        wanted = self._whole_results and others and strategies.current().averages_gradients
        return whole_results.WholeResults(self._model) if wanted else None

    def _look(self, results: list[tuple[Any, Any]]) -> None:
        """Take note of whether the step, which has just been traced, computes with results of metrics."""
        self._whole_results = self._whole_results or whole_results.computed_with(results)

    def _row_losses(self, mine: Any, rows: Any) -> RowLosses | None:
        """What measures these rows, where they have numbers."""
        chosen = model_state.of(self._model).row_choice
        return chosen.row_losses(mine.tags, rows) if chosen and isinstance(mine, TaggedRows) else None


def _sources(logs: Any, results: list[tuple[Any, Any]]) -> dict[str, Any]:
    if not isinstance(logs, dict):
        return {}
    made_by = {id(tensor): metric for tensor, metric in results}
    return {key: made_by.get(id(value)) for key, value in keras_lines.flat(logs).items()}
