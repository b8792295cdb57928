"""One step of a model on this rank's rows of a batch: its graph, what it sums over ranks, what is taken note of.

Relies on (TensorFlow 2.16 to 2.21, private, done without where they are gone): `ConcreteFunction._call_flat`,
its `function_type` and the `unpack_inputs` of that.
"""

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
    batch_share,
    keras_lines,
    log_once,
    model_state,
    row_slicing,
    run_state,
    seeds,
    sharing_report,
    xla,
)
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.fit import first_step, one_rank_shapes, virtual_steps
from matex_tf.patches.keras import batch_norm, deferred_update, metrics, metrics_along, sum_loss, weights
from matex_tf.patches.recovery import resume_fit, step_retry
from matex_tf.patches.samples import tagged_rows
from matex_tf.patches.samples.row_losses import RowLosses
from matex_tf.patches.samples.tagged_rows import TaggedRows
from matex_tf.strategies.sync import takes_along
from matex_tf.watching.meter import Meter


class SharedStep:
    """A model's `train_step` or `test_step`, on this rank's rows of a batch.

    Attributes:
        trained: the values of `step_retry.trained_by_gradients` after the last step, where its graph has read them.
        changing: what `step_retry` has found out that steps change, once.
        promised: the rows that one rank's pipeline would promise; None where a batch is given by itself.
        group: the ranks that make this step, where groups train apart; None where all do.
    """

    def __init__(self, model: Any, kind: str):
        """Args: kind: "train" or "test"."""
        self.model = model
        self.kind = kind
        self.steps = 0
        self._compiled: dict[tuple[Any, ...], Any] = {}
        self._sources: dict[tuple[bool, ...], dict[str, Any]] = {}  # see `ModelState`
        self._unfinished: Any = None  # logs and share of a step that has run and is not taken note of
        self.trained: list[Any] | None = None
        self.changing: list[Any] | None = None
        self.promised: one_rank_shapes.Rows | None = None
        self.group: world.World | None = None
        self._functions: dict[tuple[bool, ...], Any] = {}  # the compiled ones of `_compiled`
        self._check: one_rank.Check | None = None  # of the step that runs
        self._checked = False
        self._known: list[Any] = []  # see `virtual_steps.known`

    def anew(self) -> SharedStep:
        """The same step, of a model whose variables have got other shapes."""
        step = SharedStep(self.model, self.kind)
        step.steps, step._checked, step.promised = self.steps, True, self.promised
        return step

    def __call__(self, data: Any, share: RowRange) -> Any:
        """Run the step on rows `share` of an eager batch; returns its logs, those of this rank."""
        model, remembered = self.model, model_state.of(self.model)
        slices = row_slicing.sliceable(data)
        self.steps += 1
        together = self.group or world.current()
        together.location = f"{self.kind} step {self.steps} of {model.name}"
        together.step_signature = (f"a batch of {share.total} rows",)
        if remembered.before_merge is not None:
            metrics.restore_local(model)
        with world.use(together):
            step = self._step(slices, data, share.total)
        first = self.kind == "train" and remembered.begin
        if first:
            self._begin(data, slices, share)
        going_on = first and resume_fit.under_way(model)
        if going_on and going_on.replaying and going_on.restore(last=not model.run_eagerly):
            going_on = None
        if self.kind == "train" and remembered.accumulators_whole:
            weights.split_accumulators(model)
        virtual = settings.current().reproducible
        numbers = tf.constant(virtual_steps.shares(share)) if virtual else row_slicing.as_tensor(share)
        before = _values(self._put_back()) if share.rows == 0 and not virtual else None
        strategy = strategies.current()
        tagged = isinstance(data, TaggedRows) and remembered.samples is not None
        if tagged:
            remembered.samples.before_step()  # type: ignore[union-attr]
        if first and not self._checked and not going_on and not virtual and self.group is None:
            self._checked = True
            self._check = self._begin_check(data, slices, share)
        watching = self._check.watching() if self._check else contextlib.nullcontext()
        compiled = xla.called() if model.jit_compile and not model.run_eagerly else contextlib.nullcontext()
        with trace.span("step", together.location), tf_op.collecting(), watching, compiled:
            if self.kind == "train":
                strategy.before_step(model)
            begun = time.perf_counter()
            remembered.carried = None
            with world.use(together):
                logs, self.trained, carried, scores = step(data, numbers)
            remembered.carried = None if carried is None else np.asarray(carried, np.float64)
            remembered.sources = self._sources[slices]
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
        if self.kind == "train":
            run_state.current().part(Meter).count(share.total)
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
        remembered.weight = share.rows / share.total if share.total else 0.0
        if self.kind == "train":
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
        models.tell(self.model, *tagged_rows.without_tags(data, slices))

    def _begin_check(self, data: Any, slices: tuple[bool, ...], share: RowRange) -> one_rank.Check | None:
        return first_step.begin(self.model, self._functions.get(slices), data, slices, share)

    def _of_model(self) -> Any:
        """The step that the model has for a batch."""
        return self.model.train_step if self.kind == "train" else self.model.test_step

    def _step(self, slices: tuple[bool, ...], data: Any, total: int) -> Any:
        if settings.current().reproducible:
            return self._step_of_parts(slices, data, total)
        if slices not in self._compiled:
            self._compiled[slices] = self._compile(slices, data, total)
        return self._compiled[slices]

    def _step_of_parts(self, slices: tuple[bool, ...], data: Any, total: int) -> Any:
        """The same for virtual ranks, as many as this rank has now."""
        parts = len(virtual_steps.shares(RowRange(0, 1, 1, 1, 0)))
        if (slices, parts) not in self._compiled:
            self._compiled[slices, parts] = self._compile(slices, data, total, parts)
            if not self.model.run_eagerly and self._known != virtual_steps.known(self.model):
                # The step has made metrics, or found out how they add up.
                self._compiled[slices, parts] = self._compile(slices, data, total, parts)
        return self._compiled[slices, parts]

    def _compile(self, slices: tuple[bool, ...], data: Any, total: int, parts: int = 0) -> Any:
        sharing_report.shared(training=self.kind == "train")
        model = self.model
        model_step = self._of_model()
        counts_early = self._counts_early()
        along = metrics_along.MetricsAlong(model) if self._carries_metrics() else None
        built_with = [total] * len(slices) if self.promised is None else self.promised

        @tf.autograph.experimental.do_not_convert
        def step(data: Any, numbers: Any) -> Any:
            low, high, rows, of_all, first = tf.unstack(tf.convert_to_tensor(numbers))
            mine = row_slicing.take(data, slices, low, high)
            apart = self.kind == "train" and not strategies.current().averages_gradients
            of_rows = self._row_losses(mine, rows)
            share = batch_share.StepShare(rows, of_all, high - low, first, apart=apart, row_losses=of_rows)
            with contextlib.ExitStack() as inside:
                inside.enter_context(batch_share.within(share))
                results = inside.enter_context(metrics.watching(model, along.note if along else None))
                inside.enter_context(xla.compiled(model.jit_compile))  # the updates that wait for the end too
                if counts_early:
                    counting = deferred_update.then(step_retry.count_behind(model))
                    inside.enter_context(deferred_update.update_behind_metrics(model, counting))
                if along is not None:
                    along.begin()
                    inside.enter_context(deferred_update.update_behind_metrics(model, along.exchange))
                if not model.run_eagerly:
                    inside.enter_context(one_rank_shapes.tracing(mine, built_with))
                inside.enter_context(sum_loss.computed_by(model, self.kind == "train"))
                logs = sum_loss.in_logs(model_step(tagged_rows.untagged(mine)))
            self._sources[slices] = _sources(logs, results)
            trained = step_retry.read_trained(model) if counts_early else None
            scores = None if of_rows is None else of_rows.found(model)
            return logs, trained, along.total if along is not None else None, scores

        @tf.autograph.experimental.do_not_convert
        def step_of_parts(data: Any, numbers: Any) -> Any:
            numbers = tf.ensure_shape(numbers, [parts, 5])
            with contextlib.ExitStack() as inside:
                shares = [tf.unstack(own) for own in tf.unstack(numbers)]
                mine = [row_slicing.take(data, slices, low, high) for low, high, *_ in shares]
                results = inside.enter_context(metrics.watching(model))
                for own in mine:
                    if not model.run_eagerly:
                        inside.enter_context(one_rank_shapes.tracing(own, built_with))

                every = [self._row_losses(own, own_share[2]) for own, own_share in zip(mine, shares, strict=True)]

                def work(place: int) -> Any:
                    low, high, rows, of_all, first = shares[place]
                    share = batch_share.StepShare(rows, of_all, high - low, first, row_losses=every[place])
                    with batch_share.within(share):
                        return model_step(tagged_rows.untagged(mine[place]))

                logs, self._known = virtual_steps.run(model, numbers, work, results)
            self._sources[slices] = _sources(logs, results)
            scores = [of_rows.found(model) for of_rows in every if of_rows is not None]
            return logs, None, None, tuple(tf.concat(parts, 0) for parts in zip(*scores, strict=True)) or None

        if parts:
            step = step_of_parts
        if model.run_eagerly:
            return step
        if model.jit_compile and parts:
            log_once.log("jit_compile is off: with --reproducible sums have one order, and XLA takes another.")
        compiled = self._functions[slices] = tf.function(step, reduce_retracing=True)
        spec = row_slicing.relaxed(data, slices)
        of_numbers = tf.TensorSpec([parts, 5] if parts else [5], tf.int32)
        concrete = compiled.get_concrete_function(data if spec is None else spec, of_numbers)
        if spec is None:
            return compiled
        self._functions[slices] = concrete
        usual, quick = row_slicing.signature(data), _quick(concrete, data)
        others: dict[tuple[int | None, ...], Any] = {row_slicing.ranks(data): compiled}

        def call(data: Any, numbers: Any) -> Any:
            # What looks for the right graph among several takes longer than a small step.
            if row_slicing.signature(data) == usual:
                return quick(data, numbers)
            ranks = row_slicing.ranks(data)  # one graph for tensors of several ranks would not know where rows are
            if ranks not in others:
                others[ranks] = tf.function(step, reduce_retracing=True)
            return others[ranks](data, numbers)

        return call

    def _row_losses(self, mine: Any, rows: Any) -> RowLosses | None:
        """What measures these rows, where they have numbers."""
        pruning = model_state.of(self.model).samples
        return pruning.row_losses(mine.tags, rows) if pruning and isinstance(mine, TaggedRows) else None

    def _counts_early(self) -> bool:
        """Whether the metrics' states may be summed after the gradients, for ranks that die; see `step_retry`."""
        return world.current().guard is not None and self._exchanges_in_graph()

    def _carries_metrics(self) -> bool:
        """Whether the metrics' states may be summed along with the gradients."""
        ranks, optimizer = world.current(), self.model.optimizer
        if ranks.is_single or ranks.guard is not None or settings.current().codec != "none":
            return False
        in_every_step = optimizer is not None and not optimizer.gradient_accumulation_steps
        return in_every_step and self._exchanges_in_graph() and takes_along(strategies.current())

    def _exchanges_in_graph(self) -> bool:
        """Whether the step is one graph, which sums the gradients of all ranks and applies them."""
        strategy = strategies.current()
        same = strategy.averages_gradients and strategy.replicas_identical and not strategy.delays_updates
        apart = self.model.run_eagerly or settings.current().reproducible
        return self.kind == "train" and same and not apart

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


def _quick(concrete: Any, data: Any) -> Any:
    """Calls a graph with a batch of such columns. What looks for the graph's inputs in a batch takes a tenth of a
    millisecond, and more than one for a table of 40 columns, and is left out where they are plain to see."""
    places = _places(concrete, data)
    if places is None:
        return concrete

    def call(data: Any, numbers: Any) -> Any:
        leaves = [*tf.nest.flatten(data), numbers]
        return concrete._call_flat([leaves[place] for place in places], concrete.captured_inputs)

    return call


def _places(concrete: Any, data: Any) -> list[int] | None:
    """Where each input of a graph is among the tensors of a batch, and its share behind them; None where that is not
    known."""
    leaves = tf.nest.flatten(data)
    if not hasattr(concrete, "_call_flat") or not all(isinstance(leaf, tf.Tensor) for leaf in leaves):
        return None
    apart = [*map(tf.identity, leaves), tf.zeros([5], tf.int32)]  # no tensor twice
    try:
        kind = concrete.function_type
        found = kind.unpack_inputs(kind.bind(tf.nest.pack_sequence_as(data, apart[:-1]), apart[-1]))
        return [next(place for place, leaf in enumerate(apart) if leaf is one) for one in found]
    except (AttributeError, KeyError, StopIteration, TypeError):
        return None


def _values(variables: list[Any]) -> list[tuple[Any, np.ndarray]]:
    return [(variable, np.asarray(variable.numpy())) for variable in variables]


def _sources(logs: Any, results: list[tuple[Any, Any]]) -> dict[str, Any]:
    if not isinstance(logs, dict):
        return {}
    made_by = {id(tensor): metric for tensor, metric in results}
    return {key: made_by.get(id(value)) for key, value in metrics.flat(logs).items()}
