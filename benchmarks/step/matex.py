"""A rank with today's TensorFlow: Keras in lock step without this package's patches, or with each way to exchange.

python -m benchmarks.step.matex MODEL BATCH lockstep
python -m benchmarks.step.matex MODEL BATCH "chained 32" "funneled 32" …

With STEP_COMPUTE an accelerator is emulated that computes for so many seconds a step; with STEP_XLA XLA compiles the
model.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks import accelerator
from benchmarks.step import models
from benchmarks.step.turns import LOCK_STEP, Rank

#: This package's step without an exchange, in lock step: what it adds to Keras' is the time of the patches.
PATCHED = "patched lock step"
#: This package's step with an op in which the ranks meet, and nothing is summed: what the op costs, whatever it does.
MEET = "meet"
#: Keras' XLA step as two functions, in lock step: what it takes to have all gradients before the update begins.
CUT = "Keras' step cut in two"
#: Nothing but the exchange of gradients, by the default schedule.
ALONE = "exchange alone"


def the_model(name: str) -> Any:
    """A model, compiled."""
    model = accelerator.slowed(models.in_keras(name), float(os.environ.get("STEP_COMPUTE", "0")))
    models.compile_keras(model, xla=bool(os.environ.get("STEP_XLA")))
    return model


def meeting(settings: Any) -> Any:
    """A strategy that lets the ranks meet, and sums nothing."""
    import tensorflow as tf

    from matex_tf import strategies
    from matex_tf.core import world

    class Meet(strategies.Strategy):
        def exchange(self, gradients: Sequence[Any], names: Sequence[str]) -> list[Any]:
            def meet() -> np.ndarray:
                world.current().barrier("exchange gradients")
                return np.array(0, np.int32)

            with tf.control_dependencies(list(gradients)):
                met = tf.numpy_function(meet, [], tf.int32, stateful=True)
            with tf.control_dependencies([met]):
                return [tf.identity(gradient) for gradient in gradients]

    return Meet(settings)


def exchanging(name: str, model_name: str, batch: int, rank: Rank) -> tuple[Any, Callable[[], Any]]:
    """A model that exchanges in a way such as "chained 32" (schedule, megabytes of a bucket), and its step.

    With "chained 32 partitioned" or "chained 32 patched" its step is rebuilt for rows, or made of patches, whatever the
    default is.
    """
    import tensorflow as tf

    from matex_tf import settings, strategies
    from matex_tf.core import world
    from matex_tf.patches.common.row_slicing import RowRange
    from matex_tf.patches.data.local_batch import LocalBatch

    before = settings.current()
    if name == MEET:
        strategies.use(meeting(before))
    elif name == PATCHED:
        strategies.use(strategies.Strategy(before))  # it gives gradients back as they are
    else:
        schedule, bucket, *way = name.split()
        partitioner = before.partitioner if not way else {"partitioned": True, "patched": False}[way[0]]
        settings.use(dataclasses.replace(before, schedule=schedule, bucket_mb=int(bucket), partitioner=partitioner))
    model = the_model(model_name)
    # As arrays given to `fit` come out of the pipeline: the rank's own rows of a batch.
    share = tf.constant(RowRange.own([batch] * world.size(), world.rank()))
    own = LocalBatch.unknown(*models.rows(model_name, batch))._replace(share=share)
    batches = iter(tf.data.Dataset.from_tensors(own).repeat())
    model.make_train_function()
    function = model.train_function
    for _ in range(2):  # the first traces the graph, by the settings of now
        function(batches)
    strategies.use(None)
    settings.use(before)
    step = lambda: function(batches)  # noqa: E731
    return model, rank.lock_step(step) if name == PATCHED else step


def exchange_alone(model_name: str) -> Callable[[], Any]:
    """A graph that sums as many numbers as the model has gradients."""
    import tensorflow as tf

    from matex_tf.exchange import tf_op

    gradients = [tf.zeros(variable.shape) for variable in the_model(model_name).trainable_variables]
    labels = [f"gradient {number}" for number in range(len(gradients))]

    @tf.function
    def exchange(given: Any) -> Any:
        return tf_op.sum_over_ranks(given, "exchange gradients", labels)

    return lambda: exchange(gradients)


def plain(model_name: str, batch: int) -> tuple[Any, Callable[[], Any]]:
    """A model of Keras, and its step; also for Keras 2."""
    import tensorflow as tf

    model = the_model(model_name)
    batches = iter(tf.data.Dataset.from_tensors(models.rows(model_name, batch)).repeat())
    model.make_train_function()
    function = model.train_function
    return model, lambda: function(batches)


def cut_in_two(model_name: str, batch: int) -> Callable[[], Any]:
    """The step of such a model with XLA: its gradients and its update, each compiled as a whole."""
    import tensorflow as tf

    model = the_model(model_name)
    x, y = (tf.constant(one) for one in models.rows(model_name, batch))
    variables = model.trainable_variables
    model.optimizer.build(variables)

    @tf.function(jit_compile=True)
    def gradients() -> Any:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True))
        return tape.gradient(loss, [variable.value for variable in variables])

    @tf.function(jit_compile=True)
    def update(given: Any) -> None:
        model.optimizer.apply(given, variables)

    return tf.function(lambda: update(gradients()))


def main() -> None:
    rank = Rank()
    model_name, batch, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    if names[0] == "lockstep":
        model, step = plain(model_name, batch)
        steps = {LOCK_STEP: rank.lock_step(step)}
        if CUT in names:
            steps[CUT] = rank.lock_step(cut_in_two(model_name, batch))
        rank.serve(steps, models.parameters(model))
    from matex_tf import patches
    from matex_tf.core import world

    world.init()
    patches.install(seed=7)
    made = {name: exchanging(name, model_name, batch, rank) for name in names if name != ALONE}
    first = next(iter(made.values()))[0]
    steps = {name: step for name, (_, step) in made.items()}
    if ALONE in names:
        steps[ALONE] = exchange_alone(model_name)
    rank.serve(steps, models.parameters(first))


if __name__ == "__main__":
    main()
