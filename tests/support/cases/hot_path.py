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
