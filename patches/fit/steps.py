"""The functions that Keras calls for each batch: fetch the batch, take this rank's rows, run the model's own step.

Keras' own versions fetch inside the graph. Here a batch is held outside, so that its rows can be shared out anew.
"""

from __future__ import annotations

import contextlib
import functools
import time
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings, strategies
from matex_tf.core import trace, world
from matex_tf.errors import MatexError
from matex_tf.exchange import tf_op
from matex_tf.patches.across_rows import models
from matex_tf.patches.common import batch_share, log_once, model_state, row_slicing, seeds, sharing_report
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data import batch_ownership as guesses
from matex_tf.patches.data.array_sharding import LocalBatch
from matex_tf.patches.data.batches import Batch, BatchSource, fetch, own_rows
from matex_tf.patches.fit import one_rank_shapes, small_calls
from matex_tf.patches.keras import deferred_update, metrics, weights
from matex_tf.patches.recovery import resume_fit, step_retry


class SharedStep:
    """A model's `train_step` or `test_step`, on this rank's rows of a batch.

    Attributes:
        trained: the values of `step_retry.trained_by_gradients` behind the last step, where its graph has read them.
        changing: what `step_retry` has found out that steps change, once.
        promised: the rows that one rank's pipeline would promise; None where a batch is given by itself.
    """

    def __init__(self, model: Any, kind: str):
        """Args: kind: "train" or "test"."""
        self.model = model
        self.kind = kind
        self.steps = 0
        self._compiled: dict[tuple[bool, ...], Any] = {}
        self._unfinished: Any = None  # logs and share of a step that has run and is not taken note of
        self.trained: list[Any] | None = None
        self.changing: list[Any] | None = None
        self.promised: one_rank_shapes.Rows | None = None

    def __call__(self, data: Any, share: RowRange) -> Any:
        """Run the step on rows `share` of an eager batch; returns its logs, those of this rank."""
        model, remembered = self.model, model_state.of(self.model)
        slices = row_slicing.sliceable(data)
        self.steps += 1
        world.current().location = f"{self.kind} step {self.steps} of {model.name}"
        world.current().step_signature = (f"a batch of {share.total} rows",)
        if remembered.before_merge is not None:
            metrics.restore_local(model)
        step = self._step(slices, data, share.total)
        first = self.kind == "train" and remembered.begin
        if first:
            self._begin(data, slices, share)
        going_on = first and resume_fit.under_way(model)
        if going_on and going_on.replaying and going_on.restore(last=not model.run_eagerly):
            going_on = None
        if self.kind == "train" and remembered.accumulators_whole:
            weights.split_accumulators(model)
        before = _values(self._put_back()) if share.rows == 0 else None
        strategy = strategies.current()
        with trace.span("step", world.current().location), tf_op.collecting():
            begun = time.perf_counter()
            logs, self.trained = step(data, row_slicing.as_tensor(share))
            if remembered.call is not None:
                remembered.call.computing = time.perf_counter() - begun
            if before is not None:
                metrics.put_back(model, before)
            if self.kind == "train":
                strategy.after_step(model)
            self._unfinished = logs, share
        logs = self.finish()
        if going_on and going_on.replaying:  # with what an optimizer has made in a first, eager step
            going_on.restore(last=True)
            return self(data, share)
        if first and strategy.replicas_identical:
            weights.check_alike(model)
        if self.kind == "train":
            _count_step(model)
        return logs

    def finish(self) -> Any:
        """Take note of a step that has run; its logs, also where an error of its exchange has been raised since."""
        (logs, share), self._unfinished = self._unfinished, None
        remembered = model_state.of(self.model)
        remembered.rows += share.rows
        remembered.weight = share.rows / share.total if share.total else 0.0
        if self.kind == "train":
            remembered.unmerged = True
        return logs

    def trace(self, data: Any) -> None:
        """Have the graph for batches of these columns."""
        self._step(row_slicing.sliceable(data), data, row_slicing.rows_of(data))

    def _begin(self, data: Any, slices: tuple[bool, ...], share: RowRange) -> None:
        """Before the first step: the ranks compare batches and models, and take rank 0's weights."""
        model_state.of(self.model).begin = False
        ranks = world.current()
        ranks.barrier("compare the columns of the data", row_slicing.describe(data))
        if self.model.run_eagerly and not self.model.built:
            _build(self.model, data)
        weights.broadcast(self.model)
        models.tell(self.model, data, slices)
        strategies.current().begin(self.model, *weights.trained_by_steps(self.model))

    def _step(self, slices: tuple[bool, ...], data: Any, total: int) -> Any:
        if slices not in self._compiled:
            self._compiled[slices] = self._compile(slices, data, total)
        return self._compiled[slices]

    def _compile(self, slices: tuple[bool, ...], data: Any, total: int) -> Any:
        sharing_report.shared(training=self.kind == "train")
        model = self.model
        model_step = model.train_step if self.kind == "train" else model.test_step
        counts_early = self._counts_early()
        built_with = [total] * len(slices) if self.promised is None else self.promised

        @tf.autograph.experimental.do_not_convert
        def step(data: Any, numbers: Any) -> Any:
            low, high, rows, of_all = tf.unstack(tf.convert_to_tensor(numbers))
            seeds.diverge_per_rank_in_graph()
            mine = row_slicing.take(data, slices, low, high)
            apart = self.kind == "train" and not strategies.current().averages_gradients
            with contextlib.ExitStack() as inside:
                inside.enter_context(batch_share.within(batch_share.StepShare(rows, of_all, high - low, apart=apart)))
                results = inside.enter_context(metrics.watching(model))
                if counts_early:
                    inside.enter_context(deferred_update.update_behind_metrics(model, step_retry.count_behind(model)))
                if not model.run_eagerly:
                    inside.enter_context(one_rank_shapes.tracing(mine, built_with))
                logs = model_step(mine)
            model_state.of(model).sources = _sources(logs, results)
            return logs, step_retry.read_trained(model) if counts_early else None

        if model.run_eagerly:
            return step
        if model.jit_compile:
            log_once.log("jit_compile is off: gradients leave the step, and XLA cannot compile that.")
        compiled = tf.function(step, reduce_retracing=True)
        spec = row_slicing.relaxed(data, slices)
        concrete = compiled.get_concrete_function(data if spec is None else spec, tf.TensorSpec([4], tf.int32))
        if spec is None:
            return compiled
        usual = row_slicing.signature(data)

        def call(data: Any, numbers: Any) -> Any:
            # What looks for the right graph among several takes longer than a small step.
            return (concrete if row_slicing.signature(data) == usual else compiled)(data, numbers)

        return call

    def _counts_early(self) -> bool:
        """Whether the metrics' states may be summed behind the gradients, for ranks that die; see `step_retry`."""
        strategy = strategies.current()
        same = strategy.averages_gradients and strategy.replicas_identical and not strategy.delays_updates
        return self.kind == "train" and world.current().guard is not None and same and not self.model.run_eagerly

    def _put_back(self) -> list[Any]:
        """The variables that a step on a ghost's row must not change: metrics, moving statistics."""
        model = self.model
        found = [variable for metric in metrics.leaves(model) for variable in metric._variables]
        # Statistics over the rows of all ranks are right on a ghost too.
        right = {id(v) for layer in model._flatten_layers() if _synchronized(layer) for v in layer.variables}
        return [*found, *(variable for variable in model.non_trainable_variables if id(variable) not in right)]


trained = 0  # steps of all models


def _count_step(model: Any) -> None:
    """End the script after as many training steps as the settings say, on every rank after the same one."""
    global trained
    trained += 1
    if trained == settings.current().steps:
        weights.merge_statistics(model)  # nothing may be under way when a process ends
        log_once.log(f"the script was ended after {trained} training step{'s' * (trained > 1)} (--steps)")
        raise SystemExit(0)


def _synchronized(layer: Any) -> bool:
    return bool(getattr(layer, "synchronized", False))


def _values(variables: list[Any]) -> list[tuple[Any, np.ndarray]]:
    return [(variable, np.asarray(variable.numpy())) for variable in variables]


def _sources(logs: Any, results: list[tuple[Any, Any]]) -> dict[str, Any]:
    if not isinstance(logs, dict):
        return {}
    made_by = {id(tensor): metric for tensor, metric in results}
    return {key: made_by.get(id(value)) for key, value in metrics.flat(logs).items()}


def _build(model: Any, data: Any) -> None:
    """Create the variables of a model that runs eagerly before its first step, where it can be done."""
    try:
        model._symbolic_build(data_batch=data)
    except (ValueError, RuntimeError, TypeError, AttributeError, NotImplementedError):
        log_once.log(
            f"{model.name} cannot be built before its first step; its initial weights are alike where they come from "
            "the seeds, and are compared after the step."
        )


def _refuse_states(model: Any) -> None:
    """Raises: MatexError: a layer keeps a state for each row of a batch, of which a rank sees a part only."""
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False) and hasattr(layer, "reset_state"):
            raise MatexError(
                f"layer {layer.name} of {model.name} is stateful: it keeps a state for each row of a whole batch, and "
                "each rank works on other rows of it. Run the script on one rank, or build the layer without "
                "stateful=True."
            )


class StepFunction:
    """What Keras calls as `train_function` and `test_function`: one execution of `steps_per_execution` batches."""

    def __init__(self, model: Any, kind: str):
        self.step = SharedStep(model, kind)
        self.feed = BatchSource(kind)
        _refuse_states(model)
        self.model = model
        self.kind = kind
        self._whole_test = small_calls.WholeTest(model)
        if model.distribute_strategy.num_replicas_in_sync > 1:
            raise MatexError(
                f"{model.name} was built in the scope of a tf.distribute strategy of "
                f"{model.distribute_strategy.num_replicas_in_sync} replicas; matex_tf takes its place: remove the "
                "strategy, or run the script without matex_tf."
            )

    def __call__(self, iterator: Any) -> Any:
        """Run the batches of one execution.

        Raises:
            StopIteration: there is no batch left.
        """
        on_batch = not isinstance(iterator, tf.data.Iterator)
        self.step.promised = None if on_batch else one_rank_shapes.of_iterator(iterator)
        this = None if on_batch or self.kind == "test" else resume_fit.under_way(self.model)
        if this is not None and this.passes_over(lambda: self._draw(iterator)):
            return {}
        if on_batch:
            for data in fetch(iterator, 1):
                return self._on_batch(data) if self.kind == "train" else self._test_on_batch(data)
            raise StopIteration
        logs = None
        for batch in self.feed.batches(iterator, self.model.steps_per_execution):
            logs = self._run(batch)
        if logs is None:
            raise StopIteration
        return logs

    def _on_batch(self, data: Any, call: small_calls.Call | None = None) -> Any:
        batch = self.feed.given(data, call)
        if self.feed.own_on_batch:
            small_calls.rows_are_apart(self.model)
        return self._whole(self._run(batch))

    def _test_on_batch(self, data: Any) -> Any:
        call = small_calls.begin(self.model, "test_on_batch", data)
        if call is None:
            return self._on_batch(data)
        if call.whole:
            logs = self._whole_test(data)
            call.end()
            return logs
        call.alike = functools.partial(self._whole_test.alike, data)
        model_state.of(self.model).call = call
        try:
            logs = self._on_batch(data, call)
        finally:
            model_state.of(self.model).call = None
        call.end()
        return logs

    def _draw(self, iterator: Any) -> bool:
        """Fetch the batches of one execution, and leave them; whether there were any."""
        return any([True for _ in self.feed.batches(iterator, self.model.steps_per_execution)])

    def _run(self, batch: Batch) -> Any:
        guard = world.current().guard
        if guard is None:
            return self.step(*batch())
        return step_retry.step(self.model, batch, self.step, guard)

    def _whole(self, logs: Any) -> Any:
        """Logs of `train_on_batch` and `test_on_batch`, over all ranks; metrics keep this rank's state."""
        averaged = metrics.merge(self.model)
        if self.kind == "train":
            weights.merge_statistics(self.model)
        whole = metrics.complete(self.model, _tensors(logs), averaged)
        metrics.restore_local(self.model)
        return whole


def _tensors(logs: Any) -> Any:
    return logs if isinstance(logs, dict) else {"loss": logs}


class PredictFunction:
    """What Keras calls as `predict_function`: this rank predicts its rows, and every rank gets all.

    Of a shard a rank gets the predictions for the rows that it holds, so that they stand beside its labels.
    """

    def __init__(self, model: Any):
        self.model = model
        self._compiled: dict[tuple[bool, ...], Any] = {}
        self._graphs: dict[tuple[bool, ...], Any] = {}  # not those of steps that are run eagerly
        _refuse_states(model)

    def __call__(self, batches: Any) -> Any:
        """Predictions, in the order of rows, for a list of batches."""
        remembered = model_state.of(self.model)
        if remembered.predicts is not None:
            return self._predictions(batches)
        remembered.call = call = small_calls.begin(self.model, "predict_on_batch", batches)
        try:
            outputs = self._predictions(batches)
        finally:
            remembered.call = None
        if call is not None:
            call.end()
        return outputs

    def _predictions(self, batches: Any) -> Any:
        outputs = [self._predict(row_slicing.to_tensors(batch)) for batch in batches]
        if len(outputs) == 1:
            return outputs[0]
        return tf.nest.map_structure(_concat, *outputs)

    def _predict(self, data: Any) -> Any:
        """Predictions for one batch."""
        call = model_state.of(self.model).call
        if call is not None and call.whole:
            rows = row_slicing.rows_of(data)
            return self._run(data, RowRange(0, rows, rows, rows))
        if call is not None:
            call.same = isinstance(data, LocalBatch) and bool(data.whole)

        if isinstance(data, LocalBatch) and not bool(data.whole):
            small_calls.rows_are_apart(self.model)
            rows, share = own_rows(data)
            return row_slicing.first_rows(self._run(rows, share), share)

        if not isinstance(data, LocalBatch) and self._find(data).own:
            small_calls.rows_are_apart(self.model)
            rows = row_slicing.rows_of(data)
            return self._run(data, RowRange(0, rows, rows, rows))

        def predict() -> Any:
            if isinstance(data, LocalBatch):
                rows, share = own_rows(data)
            else:
                ranks = world.current()
                rows, share = data, RowRange.of(row_slicing.rows_of(data), ranks.rank, ranks.size)
            return _gather(self._run(rows, share), share)

        return step_retry.whole(predict, "predict a batch")

    def _find(self, data: Any) -> guesses.Finding:
        """Whether a batch is the rank's own: of a `predict` the first one tells, of `predict_on_batch` each."""
        remembered = model_state.of(self.model)
        if remembered.predicts is None:
            found = guesses.look(data, guesses.UNKNOWN, "compare the batches of predict_on_batch")
            guesses.tell(found, "predict_on_batch")
            if remembered.call is not None:
                remembered.call.same = found.same and not found.own
            return found
        if remembered.finding is None:
            remembered.finding = guesses.look(data, remembered.predicts, "compare the first batch of predict")
            guesses.tell(remembered.finding, "the data of predict")
        return remembered.finding

    def _run(self, data: Any, share: RowRange) -> Any:
        slices = row_slicing.sliceable(data)
        if slices not in self._compiled:
            self._compiled[slices] = self._compile(slices, data, share.total)
        begun = time.perf_counter()
        outputs = self._compiled[slices](data, share.low, share.high)
        if (call := model_state.of(self.model).call) is not None:
            call.computing += time.perf_counter() - begun
            call.alike = lambda: slices in self._graphs and small_calls.only_computes(self._graphs[slices])
        return outputs

    def _compile(self, slices: tuple[bool, ...], data: Any, total: int) -> Any:
        sharing_report.shared(training=False)
        model = self.model
        predict_step = model.predict_step
        if model.jit_compile and not model.run_eagerly:
            predict_step = tf.function(predict_step, jit_compile=True, reduce_retracing=True)

        @tf.autograph.experimental.do_not_convert
        def step(data: Any, low: Any, high: Any) -> Any:
            seeds.diverge_per_rank_in_graph()
            mine = row_slicing.take(data, slices, low, high)
            if model.run_eagerly:
                return predict_step(mine)
            with one_rank_shapes.tracing(mine, [total] * len(slices)):
                return predict_step(mine)

        if model.run_eagerly:
            return step
        compiled = tf.function(step, reduce_retracing=True)
        spec = row_slicing.relaxed(data, slices)
        number = tf.TensorSpec([], tf.int32)

        def call(data: Any, low: int, high: int) -> Any:
            return compiled(data, _number(low), _number(high))

        concrete = compiled.get_concrete_function(data if spec is None else spec, number, number)
        self._graphs[slices] = concrete.graph
        return call


@functools.lru_cache(maxsize=256)  # a small call takes hardly longer than making two tensors
def _number(value: int) -> tf.Tensor:
    with tf.init_scope():
        return tf.constant(value, tf.int32)


def _concat(*parts: Any) -> Any:
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, parts)
    return tf.concat(parts, 0) if parts[0].shape.rank else tf.stack(parts)


def _gather(outputs: Any, share: RowRange) -> Any:
    """Join the ranks' outputs for their rows of one batch."""
    ranks = world.current()
    ranks.location = f"predict, a batch of {share.total} rows"

    def join(output: Any) -> Any:
        if isinstance(output, (tf.RaggedTensor, tf.SparseTensor)):
            mine = output if share.rows else None
            parts = [part for part in ranks.allgather(_pack(mine), "gather predictions") if part is not None]
            return _concat(*map(_unpack, parts))
        value = output.numpy()
        taken = share.high - share.low
        if value.ndim == 0 or value.shape[0] != taken:
            parts = ranks.allgather((value, share.rows), "gather predictions")
            if value.ndim == 0 and np.issubdtype(value.dtype, np.floating):
                mean = sum(float(part) * rows for part, rows in parts) / max(1, share.total)
                return tf.constant(mean, output.dtype)
            return tf.constant(parts[0][0])
        return tf.constant(ranks.allgather_rows(value[: share.rows], "gather predictions"))

    return tf.nest.map_structure(join, outputs, expand_composites=False)


def _pack(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, tf.SparseTensor):
        return "sparse", value.indices.numpy(), value.values.numpy(), value.dense_shape.numpy()
    return "ragged", value.to_list(), value.dtype.name


def _unpack(packed: Any) -> Any:
    if packed[0] == "sparse":
        return tf.SparseTensor(packed[1], packed[2], packed[3])
    return tf.ragged.constant(packed[1], dtype=packed[2])
