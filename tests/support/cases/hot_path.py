"""What a step asks of TensorFlow by hand."""

from __future__ import annotations

import os
from unittest import mock

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.ops import gen_dataset_ops

from tests.support.cases.common import classifier, compiled, table


def eager_ops():
    """Ops that run by themselves, not in a graph, for each batch that is trained on and evaluated."""
    x, y = table(rows=240)
    model = compiled(classifier())
    calls = 0
    execute = pywrap_tfe.TFE_Py_FastPathExecute

    def counting(*args):
        nonlocal calls
        calls += 1
        return execute(*args)

    def ops(batches, work):
        nonlocal calls
        work(x[: 8 * batches], y[: 8 * batches], batch_size=8, verbose=0)  # whatever is made the first time
        calls = 0
        work(x[: 8 * batches], y[: 8 * batches], batch_size=8, verbose=0)
        return calls

    pywrap_tfe.TFE_Py_FastPathExecute = counting
    try:
        return [(ops(30, work) - ops(10, work)) / 20 for work in (model.fit, model.evaluate)]
    finally:
        pywrap_tfe.TFE_Py_FastPathExecute = execute


def iterators():
    """Iterators over pipelines that an epoch of training and validation on arrays makes."""
    x, y = table(rows=240)
    model, made = compiled(classifier()), []
    make = gen_dataset_ops.make_iterator

    def counting(*args, **kwargs):
        made.append(1)
        return make(*args, **kwargs)

    def of(epochs):
        made.clear()
        model.fit(x, y, epochs=epochs, batch_size=32, validation_data=(x, y), verbose=0)
        return len(made)

    with mock.patch.object(gen_dataset_ops, "make_iterator", counting):
        return (of(6) - of(2)) / 4


def threads():
    """Threads of TensorFlow's for an op, and whether those that have nothing to do spin."""
    config = context.context().config
    return int(os.environ["TF_NUM_INTRAOP_THREADS"]), not config.experimental.disable_thread_spinning


def inputs_of_a_graph():
    """Whether the inputs of a step's graph are found in batches of several nestings, and what it makes of others."""
    import tensorflow as tf

    from matex_tf.patches.fit.step import quick_call

    def batches(first):
        parts = [tf.fill([2, 3], first + number) for number in range(4)]
        a, b, c, d = parts
        return [(a, b), ({"b": a, "a": b}, c), ([{"z": a, "y": (b, c)}, d], b), ((a, a), {"b": b, "a": b})]

    def step(data, numbers):
        leaves = [*tf.nest.flatten(data), numbers]
        return tf.stack([tf.cast(leaf[..., 0], tf.float32) * 10.0**place for place, leaf in enumerate(leaves)][:-1])

    numbers = tf.range(5)
    found = []
    for data, other in zip(batches(1.0), batches(5.0), strict=True):
        concrete = tf.function(lambda data, numbers: tf.reduce_sum(step(data, tf.reshape(numbers, [5, 1])))
                               ).get_concrete_function(data, numbers)  # fmt: skip
        quick = quick_call.of(concrete, data)
        same = all(float(quick(batch, numbers)) == float(concrete(batch, numbers)) for batch in (data, other))
        found.append((quick is not concrete, same))
    ragged = (tf.ragged.constant([[1.0], [1.0, 2.0]]), tf.ones([2]))
    concrete = tf.function(lambda data, numbers: tf.reduce_sum(data[1])).get_concrete_function(ragged, numbers)
    return found, quick_call.of(concrete, ragged) is concrete
