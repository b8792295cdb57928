"""Threads of TensorFlow in ranks with few cores.

- A thread of TensorFlow's pools that has nothing to do looks for work some thousand times before it sleeps. Where
  threads have cores of their own that saves the time of waking them. Where a rank has one core, it takes the core from
  the rank's other threads, or from other ranks, which have work to do.
- tf.data tunes each pipeline in a thread of its own, which wakes after 10 ms, 20 ms, 40 ms, … up to a minute. Who lets
  go of an iterator, at the end of each epoch, wakes the thread first and notes after that that it shall end. A thread
  that is quick finds no such note, sleeps on, and the epoch waits for it: for up to as long as it took, most often
  where a rank has a core. So ranks with up to `MOST` cores have pipelines that are not tuned: there each stage works on
  as many elements at once as there are cores, and prefetching adapts by itself. They make the next element
  as tuned ones do (`look_ahead`): else an epoch of a `shuffle` that one process begins at the end of a `fit` would not
  be drawn, and the next `fit` on the same data would have another order.

Relies on (TensorFlow 2.13 to 2.21, private): `Context.config` of tensorflow.python.eager.context, a property that gives
the ConfigProto by which TensorFlow makes its threads; on `experimental.disable_thread_spinning` of that; and on
`OwnedIterator._create_iterator` of tensorflow.python.data.ops.iterator_ops. Public: the fields of `tf.data.Options`.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

from matex_tf.patches.common import look_ahead, wrapping

#: What tf.data works on at once, at most, in a stage that it does not tune.
MOST = 16


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    context = importlib.import_module("tensorflow.python.eager.context")
    original = wrapping.require(context, "Context.config")

    def config(self: Any) -> Any:
        found = original.fget(self)
        if _threads() == 1 and not wrapping.alone():
            found.experimental.disable_thread_spinning = True
        return found

    context.Context.config = property(config)
    iterators = importlib.import_module("tensorflow.python.data.ops.iterator_ops")
    wrapping.method(iterators, "OwnedIterator._create_iterator", _without_tuning)


def _threads() -> int:
    """Threads that TensorFlow has for an op."""
    return int(os.environ.get("TF_NUM_INTRAOP_THREADS") or 0) or len(os.sched_getaffinity(0))


def _without_tuning(wrapped: Any, iterator: Any, args: Any, kwargs: Any) -> Any:
    dataset = args[0] if args else kwargs["dataset"]
    given = dataset.options()
    if _threads() > MOST or given.autotune.enabled is not None:
        return wrapped(dataset)
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    optimized = given.experimental_optimization
    rewritten = False not in (optimized.apply_default_optimizations, optimized.inject_prefetch)
    ahead = look_ahead.steady(dataset) if rewritten else dataset
    result = wrapped(ahead.with_options(options))
    iterator._dataset = dataset  # what others know it by
    return result
