"""The functions that Keras calls for each batch of training and evaluation: fetch it, and run the model's own step.

Keras' own versions fetch inside the graph. Here a batch is held outside, so that its rows can be shared out anew.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from matex_tf import strategies
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.patches.common import keras_lines, model_state, under_way
from matex_tf.patches.data.batches import Batch, BatchSource, fetch
from matex_tf.patches.data.row_batches import RowIterator
from matex_tf.patches.fit import end_of_data, small_calls
from matex_tf.patches.fit.step import one_rank_shapes, partitioned_step
from matex_tf.patches.fit.step.shared_step import SharedStep
from matex_tf.patches.keras import metrics, weights
from matex_tf.patches.recovery import resume_fit
from matex_tf.patches.steps import row_choice
from matex_tf.patches.turns import data_threads


class StepFunction:
    """What Keras calls as `train_function` and `test_function`: one execution of `steps_per_execution` batches.

    Attributes:
        shared_step: the class of its step.
    """

    shared_step = SharedStep

    def __init__(self, model: Any, kind: str):
        """Args: kind: "train" or "test"."""
        self.step = self.shared_step(model, kind)
        self.feed = BatchSource(kind)
        refuse_unfit(model)
        self.model = model
        self.kind = kind
        self._plain: Any = None  # Keras' own, for calls that other ranks do not take part in
        self._whole_test = small_calls.WholeTest(model)
        self._counters = end_of_data.Counters(model, self.step.graphs)
        self.apart: Any = None  # what makes the steps of groups that train apart

    def __call__(self, iterator: Any) -> Any:
        """Run the batches of one execution.

        Raises:
            StopIteration: there is no batch left.
        """
        if under_way.is_apart():
            self._plain = self._plain or data_threads.plain(self.model, self.kind)
            return self._plain(iterator)
        on_batch = not isinstance(iterator, (tf.data.Iterator, RowIterator))
        alone = on_batch or one_rank_shapes.gets_batches(self.model)
        graphs = self.step.graphs
        graphs.promise = None if alone else one_rank_shapes.of_iterator(iterator)
        this = None if on_batch or self.kind == "test" else resume_fit.under_way(self.model)
        if this is not None and this.passes_over(lambda: self._draw(iterator, self.model.steps_per_execution) > 0):
            return {}
        if on_batch:
            for data in fetch(iterator, 1):
                return self._on_batch(data) if self.kind == "train" else self._test_on_batch(data)
            raise StopIteration
        return self._run_all(iterator, self.model.steps_per_execution)

    def _run_all(self, iterator: Any, steps: int) -> Any:
        """Run so many batches."""
        logs, counts = None, not keras_lines.is_keras_2(self.model)
        for batch in self.feed.batches(iterator, steps):
            if counts:
                self._counters.before_step()
            logs = self._run(batch)
        if logs is None:
            if counts:
                self._counters.at_end()
            raise StopIteration
        return logs

    def compile_anew(self) -> None:
        """The model has changed: its next step has another graph."""
        self.step, self._plain = self.step.anew(), None
        self._counters = end_of_data.Counters(self.model, self.step.graphs)
        self._whole_test = small_calls.WholeTest(self.model)
        model_state.of(self.model).small_calls.clear()

    def _on_batch(self, data: Any, call: small_calls.Call | None = None) -> Any:
        batch = self.feed.given(data, call)
        if self.feed.own_on_batch:
            small_calls.rows_are_apart(self.model)
        growth = world.of_job().growth
        compute = lambda: self._whole(self._run(batch, single=True))  # noqa: E731
        if growth is None or self.feed.own_on_batch or not partitioned_step.applies(self.model, data):
            return compute()
        return growth.on_batch(self.step, data, compute)

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

    def _draw(self, iterator: Any, steps: int) -> int:
        """Fetch so many batches, and leave them; how many there were."""
        drawn = sum(1 for _ in self.feed.batches(iterator, steps))
        if self._is_apart():
            self.apart.pass_over(drawn)
        return drawn

    def begin_epoch(self) -> None:
        """An epoch begins; all ranks come here."""
        self.feed.begin_epoch()
        if self._is_apart():
            self.apart.begin_epoch()

    def end_epoch(self, evaluating: bool) -> None:
        """An epoch has no batch left, or the model is evaluated; all ranks come here."""
        self.feed.end_epoch(self.model)
        if not evaluating:
            if self._is_apart():
                self.apart.end_epoch()
            for part in model_state.of(self.model).fit_parts:
                part.after_epoch()

    def _run(self, batch: Batch, single: bool = False) -> Any:
        if self._is_apart():
            return self.apart(batch, single)
        parts = model_state.of(self.model).fit_parts if self.kind == "train" else []
        for part in parts:
            if part.wants_rows:
                data, share = batch()
                part.before_step(row_choice.untagged(data), share)
        logs = self.step.of_batch(batch)
        self.step.tell()
        for part in parts:
            part.after_step()
        return logs

    def _is_apart(self) -> bool:
        """Whether groups of ranks train apart, by what `self.apart` makes of the step."""
        strategy = strategies.current()
        is_apart = self.kind == "train" and strategy.apart
        if is_apart and self.apart is None:
            self.apart = strategy.steps_apart(self.step)
        return is_apart

    def _whole(self, logs: Any) -> Any:
        """Logs of `train_on_batch` and `test_on_batch`, over all ranks; metrics keep this rank's state."""
        if self.kind == "train":
            weights.merge_statistics(self.model)
        return metrics.of_all(self.model, logs if isinstance(logs, dict) else {"loss": logs})


def refuse_unfit(model: Any) -> None:
    """Raises: MatexError: a model cannot be shared out: it is replicated already, or a layer keeps a state for each row
    of a batch, of which a rank computes a part."""
    replicas = model.distribute_strategy.num_replicas_in_sync
    if replicas > 1:
        raise MatexError(
            f"{model.name} was built in the scope of a tf.distribute strategy of {replicas} replicas; matex_tf takes "
            "its place: remove the strategy, or run the script without matex_tf."
        )
    if partitioned_step.can(model):
        return
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False) and hasattr(layer, "reset_state"):
            raise MatexError(
                f"layer {layer.name} of {model.name} is stateful: it keeps a state for each row of a whole batch, and "
                "each rank works on other rows of it, since the steps are not partitioned here (docs/how-it-works.md). "
                "Run the script on one rank, or build the layer without stateful=True."
            )
