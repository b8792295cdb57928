"""The function that Keras calls to predict a batch: each rank predicts its rows, and every rank gets all."""

from __future__ import annotations

import contextlib
import functools
import time
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.exchange import tf_op
from matex_tf.patches.across_rows import models, whole_batch
from matex_tf.patches.common import batch_share, model_state, row_slicing, sharing_report, under_way, xla
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data.batches import own_rows
from matex_tf.patches.data.local_batch import LocalBatch
from matex_tf.patches.fit import small_calls, step_function
from matex_tf.patches.fit.step import one_rank_shapes, partitioned_step, virtual_steps
from matex_tf.patches.fit.step.leaves import has_tensors_alone
from matex_tf.patches.fit.step.partitioned_step import PartitionedStep
from matex_tf.patches.keras import weights
from matex_tf.patches.recovery import step_retry
from matex_tf.patches.sources import batch_ownership as guesses
from matex_tf.patches.turns import data_threads

_WHAT = "gather predictions"


class PredictFunction:
    """What Keras calls as `predict_function`: this rank predicts its rows, and every rank gets all.

    Of a shard a rank gets the predictions for the rows that it holds, so that they stand beside its labels.
    """

    def __init__(self, model: Any):
        self.model = model
        self._plain: Any = None  # Keras' own, for calls that other ranks do not take part in
        self._compiled: dict[tuple[bool, ...], Any] = {}
        self._partitioned: dict[tuple[bool, ...], PartitionedStep] = {}
        self._graphs: dict[tuple[bool, ...], Any] = {}  # not those of steps that are run eagerly
        step_function.refuse_unfit(model)

    def __call__(self, batches: Any) -> Any:
        """Predictions, in the order of rows, for a list of batches."""
        if under_way.is_apart():
            self._plain = self._plain or data_threads.plain(self.model, "predict")
            return self._plain(batches)
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
            return self._run(data, RowRange(0, rows, rows, rows, 0))
        if call is not None:
            call.same = isinstance(data, LocalBatch) and bool(data.whole)

        if isinstance(data, LocalBatch) and not bool(data.whole):
            small_calls.rows_are_apart(self.model)
            rows, share = own_rows(data)
            return row_slicing.first_rows(self._run(rows, share), share)

        if not isinstance(data, LocalBatch) and self._find(data).own:
            small_calls.rows_are_apart(self.model)
            rows = row_slicing.rows_of(data)
            return self._run(data, RowRange(0, rows, rows, rows, 0))

        def predict() -> Any:
            if isinstance(data, LocalBatch):
                rows, share = own_rows(data)
            else:
                ranks = world.current()
                rows, share = data, RowRange.of(row_slicing.rows_of(data), ranks.rank, ranks.size)
            if self._partitions(rows):
                return self._by_all(rows, share)
            return _gather(self._run(rows, share), share)

        return step_retry.whole(predict, "predict a batch")

    def _partitions(self, data: Any) -> bool:
        """Whether a batch that all ranks have is predicted by a partitioned step."""
        can = partitioned_step.can(self.model)
        return can and (has_tensors_alone(data) or weights.has_parts(self.model))

    def _by_all(self, data: Any, share: RowRange) -> Any:
        """What one rank predicts for a batch, which need not be row by row."""
        slices = row_slicing.sliceable(data)
        if slices not in self._partitioned:
            sharing_report.shared(training=False)
            name = f"predict of {self.model.name}"
            slots = functools.partial(weights.in_parts_of, self.model)
            self._partitioned[slices] = PartitionedStep(
                self._of_model(), name, slices, None, slots, joins=_WHAT, by_xla=self._by_xla
            )
        step = self._partitioned[slices]
        made = step.make(data, [share.total] * len(slices))
        begun = time.perf_counter()
        with (
            world.current().during(f"predict, a batch of {share.total} rows", step.how),
            tf_op.collecting(),
            xla.called(self._by_xla),
        ):
            outputs = step(data, share)
        if (call := model_state.of(self.model).call) is not None:
            call.computing += time.perf_counter() - begun
            call.alike = lambda: models.has_no_effects(made.traced.graph)
        return outputs

    @property
    def _by_xla(self) -> bool:
        return bool(self.model.jit_compile) and not self.model.run_eagerly

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
        if (parts := weights.in_parts_of(self.model)) is not None:
            parts.join()
        slices = row_slicing.sliceable(data)
        if slices not in self._compiled:
            self._compiled[slices] = self._compile(slices, data, share.total)
        begun = time.perf_counter()
        if settings.current().reproducible:
            outputs = self._of_parts(self._compiled[slices], data, share)
        else:
            outputs = self._compiled[slices](data, row_slicing.as_tensor(share))
        if (call := model_state.of(self.model).call) is not None:
            call.computing += time.perf_counter() - begun
            call.alike = lambda: slices in self._graphs and models.has_no_effects(self._graphs[slices])
        return outputs

    def _of_parts(self, compiled: Any, data: Any, share: RowRange) -> Any:
        """What a rank's virtual ranks predict for their rows, with the shapes that each of them has."""
        parts = [RowRange(*map(int, part)) for part in virtual_steps.shares(share)]
        parts = [part for part in parts if part.rows] or parts[:1]
        before = virtual_steps.generators(self.model)
        outputs = []
        for number, part in enumerate(parts):
            if number:  # each draws its part of what the batch draws
                for variable, value in before:
                    variable.assign(value)
            outputs.append(compiled(data, row_slicing.as_tensor(part)))
        return outputs[0] if len(parts) == 1 else tf.nest.map_structure(_concat, *outputs)

    def _of_model(self) -> Any:
        return self.model.predict_step

    def _compile(self, slices: tuple[bool, ...], data: Any, total: int) -> Any:
        sharing_report.shared(training=False)
        model = self.model
        predict_step = self._of_model()
        if self._by_xla:
            predict_step = tf.function(predict_step, jit_compile=True, reduce_retracing=True)

        @tf.autograph.experimental.do_not_convert
        def step(data: Any, numbers: Any) -> Any:
            low, high, rows, of_all, first = tf.unstack(tf.convert_to_tensor(numbers))
            mine = row_slicing.take(data, slices, low, high)
            with contextlib.ExitStack() as inside:
                inside.enter_context(batch_share.drawing(batch_share.StepShare(rows, of_all, high - low, first)))
                if not model.run_eagerly:
                    inside.enter_context(one_rank_shapes.tracing(mine, [total] * len(slices)))
                return predict_step(mine)

        if model.run_eagerly:
            return step
        compiled = tf.function(step, reduce_retracing=True)
        spec = row_slicing.relaxed(data, slices)
        concrete = compiled.get_concrete_function(spec, tf.TensorSpec([5], tf.int32))
        self._graphs[slices] = concrete.graph
        return compiled


def _concat(*parts: Any) -> Any:
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, parts)
    return tf.concat(parts, 0) if parts[0].shape.rank else tf.stack(parts)


def _gather(outputs: Any, share: RowRange) -> Any:
    """Join the ranks' outputs for their rows of one batch."""
    ranks = world.current()
    ranks.at(f"predict, a batch of {share.total} rows")

    def join(output: Any) -> Any:
        if isinstance(output, (tf.RaggedTensor, tf.SparseTensor)):
            return whole_batch.joined(output, [True], share.taken())
        value = output.numpy()
        taken = share.high - share.low
        if value.ndim == 0 or value.shape[0] != taken:
            parts = ranks.allgather((value, share.rows), _WHAT)
            if value.ndim == 0 and np.issubdtype(value.dtype, np.floating):
                mean = sum(float(part) * rows for part, rows in parts) / max(1, share.total)
                return tf.constant(mean, output.dtype)
            return tf.constant(parts[0][0])
        return tf.constant(ranks.allgather_rows(value[: share.rows], _WHAT))

    return tf.nest.map_structure(join, outputs, expand_composites=False)
