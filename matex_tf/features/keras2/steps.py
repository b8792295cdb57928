"""The functions that Keras 2 calls for each batch: what those of Keras 3 do, for iterators as tf_keras has them.

AutoGraph is at work in what the steps of Keras 2 call, so that the `call` of a layer may branch on tensors.

Relies on (tf_keras 2.16 to 2.21), private: `Model._train_counter`, `_test_counter`, `_predict_counter` and
`_steps_per_execution`.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

from matex_tf import strategies
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.patches.common import keras_lines, model_state, row_slicing
from matex_tf.patches.common.active_flag import ActiveFlag
from matex_tf.patches.data.batches import fetch
from matex_tf.patches.fit import predict_function, step_function
from matex_tf.patches.fit.step.shared_step import SharedStep
from matex_tf.patches.recovery import resume_fit

#: While `train_on_batch` and its kin run, whose iterators have one batch.
_on_batch = ActiveFlag("on a batch")


def on_batch() -> contextlib.AbstractContextManager[None]:
    """Inside of this block an iterator has the one batch that a script has given."""
    return _on_batch()


class Step(SharedStep):
    """A model's `train_step` or `test_step`, on this rank's rows of a batch."""

    def _of_model(self) -> Any:
        return keras_lines.converted(super()._of_model(), itself=False)

    def _build(self, data: Any) -> None:
        """As a step in a graph would: it is traced, and not run."""
        inputs = data[0] if isinstance(data, tuple) else data
        look = tf.function(keras_lines.converted(lambda x: self.model(x, training=False), itself=False))
        try:
            look.get_concrete_function(tf.nest.map_structure(row_slicing.any_rows, inputs))
        except Exception:  # of code that runs eagerly alone
            self._tell_not_built()


class StepFunction(step_function.StepFunction):
    """What Keras 2 calls as `train_function` and `test_function`: one execution of `steps_per_execution` batches."""

    shared_step = Step

    def __init__(self, model: Any, kind: str):
        """Args: kind: "train" or "test"."""
        refuse(model)
        if kind == "train" and strategies.current().apart:
            raise MatexError(
                f"groups that train independently (--strategy {strategies.current().name}) need Keras 3, and "
                f"{model.name} is of Keras 2: take --strategy local without --groups."
            )
        super().__init__(model, kind)

    def __call__(self, iterator: Any) -> Any:
        """Run the batches of one execution.

        Raises:
            StopIteration: there is no batch left.
        """
        if _on_batch:
            (data,) = fetch(iterator, 1)
            return self._whole(self._run(self.feed.given(data)))
        this = None if self.kind == "test" else resume_fit.under_way(self.model)
        if this is not None and this.passes_over(lambda: self._draw(iterator, steps_of(self.model)) > 0):
            return {}
        return self._run_all(iterator, steps_of(self.model))

    def _draw(self, iterator: Any, steps: int) -> int:
        drawn = super()._draw(iterator, steps)
        self.model._train_counter.assign_add(drawn)
        return drawn

    def _run(self, batch: Any, single: bool = False) -> Any:
        logs = super()._run(batch, single)
        (self.model._train_counter if self.kind == "train" else self.model._test_counter).assign_add(1)
        return logs


class PredictFunction(predict_function.PredictFunction):
    """What Keras 2 calls as `predict_function`: this rank predicts its rows, and every rank gets all."""

    def __init__(self, model: Any):
        refuse(model)
        super().__init__(model)

    def __call__(self, iterator: Any) -> Any:
        """Predictions, in the order of rows, for the batches of one execution.

        Raises:
            StopIteration: there is no batch left.
        """
        batches = fetch(iterator, 1 if _on_batch else steps_of(self.model))
        if not batches:
            raise StopIteration
        known, notes = model_state.of(self.model).predicts, model_state.of(self.model)
        if _on_batch:  # in a callback of predict, maybe
            notes.predicts = None
        try:
            outputs = self._predictions(batches)
        finally:
            notes.predicts = known
        self.model._predict_counter.assign_add(len(batches))
        return outputs

    def _of_model(self) -> Any:
        return keras_lines.converted(super()._of_model(), itself=False)


def steps_of(model: Any) -> int:
    """The batches of one execution of a model, which may not be compiled."""
    return 1 if model._steps_per_execution is None else int(model._steps_per_execution.numpy())


def refuse(model: Any) -> None:
    """Raises: MatexError: a model that cannot be shared out."""
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False) and hasattr(layer, "reset_states") and hasattr(layer, "cell"):
            raise MatexError(
                f"layer {layer.name} of {model.name} is stateful: it keeps a state for each row of a whole batch, and "
                "each rank works on other rows of it. Run the script on one rank, or build the layer without "
                "stateful=True."
            )
    if not tf.executing_eagerly():
        raise MatexError(
            f"{model.name} is run in a graph of TensorFlow 1, which is not split for tf_keras: leave out "
            f"disable_eager_execution, or run the script on one rank ({world.current().size} here)."
        )
