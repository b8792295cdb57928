"""`--transport horovod`: an installed Horovod adds up the dense gradients of a step, in its graph.

In front of its sums a step meets the other ranks: those that have gone different ways, or have other gradients, stop
with words, where Horovod would wait. After that each bucket travels as soon as its gradients are there. A step that is
held against one rank, see `tf_op.watching`, goes through our own exchange: which of the two is asked as the step runs.

Relies on (Horovod 0.28.1): `init`, `rank`, `size`, `mpi_built`, `grouped_allreduce(tensors, op, name,
ignore_name_scope)` and `Sum` of horovod.tensorflow, all public.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.core.mismatch import checksum
from matex_tf.errors import MissingPackage
from matex_tf.exchange import process_group, tf_op
from matex_tf.exchange.bucket import BucketPlan
from matex_tf.state import notes

#: What Horovod adds up; of gradients that are anything else, our own exchange takes care.
DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")


class _Counts(dict[str, int]):
    """Of a graph: how often each bucket was exchanged in it."""


def sum_over_ranks(tensors: Sequence[tf.Tensor], what: str, labels: Sequence[str]) -> list[tf.Tensor]:
    """Sum each tensor over all ranks, see `tf_op.sum_over_ranks`.

    Args:
        tensors: dense gradients; of a dtype that Horovod does not sum, ranks sum them by `tf_op`.
        what: the purpose, see `World.barrier`.
        labels: a name for each tensor, the same on every rank.

    Raises:
        MissingPackage: on every rank, when this is traced: Horovod cannot be used on some of them.
    """
    known = all(tensor.shape.is_fully_defined() and tensor.dtype.name in DTYPES for tensor in tensors)
    if not tensors or not known or world.current().is_single or not _in_order():
        return tf_op.sum_over_ranks(tensors, what, labels, coded=True)
    with tf.init_scope():
        horovod = _started()
    plan = BucketPlan.of(what, labels, tensors)

    def meet() -> list[np.ndarray]:
        if tf_op.watched():
            return [np.array(False)]
        ranks = world.current()
        process_group.of(ranks, plan)
        ranks.barrier(what, plan.described)
        return [np.array(True)]

    with _without_xla():
        (met,) = tf_op.call(meet, [], [tf.bool], lambda _: [np.array(False)])
        met.set_shape([])
        sums: list[Any] = list(tensors)
        for bucket in plan.buckets:
            own = [tensors[member] for member in bucket.members]
            add = functools.partial(
                horovod.grouped_allreduce,
                own,
                op=horovod.Sum,
                name=_name([what, *(plan.described[member] for member in bucket.members)]),
                ignore_name_scope=True,
            )
            totals = tf.cond(met, add, functools.partial(_unchanged, own))
            for member, total in zip(bucket.members, totals, strict=True):
                sums[member] = total
        results: list[tf.Tensor] = tf.cond(
            met,
            lambda: _unchanged(sums),
            lambda: tf_op.sum_over_ranks(sums, what, labels, coded=True),
        )
    for result, tensor in zip(results, tensors, strict=True):
        result.set_shape(tensor.shape)
    return results


def _without_xla() -> contextlib.AbstractContextManager[None]:
    """Inside of this block XLA compiles nothing: it knows nothing of Horovod's ops."""
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    scope: contextlib.AbstractContextManager[None] = tf.xla.experimental.jit_scope(compile_ops=False)
    return scope


def _in_order() -> bool:
    """Whether ops run eagerly, or in the order of the program: those of a session's graph have no order."""
    return tf.executing_eagerly() or bool(tf.compat.v1.get_default_graph().building_function)


def _unchanged(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.identity(tensor) for tensor in tensors]


def _name(described: Sequence[str]) -> str:
    """What Horovod knows a bucket by: the same on all ranks, and another for each bucket that may be on its way."""
    name = f"matex_tf_{checksum(chr(0).join(described)):08x}"
    if tf.executing_eagerly():
        return name
    counts = notes.of(tf.compat.v1.get_default_graph(), _Counts)
    counts[name] = counts.get(name, 0) + 1
    return f"{name}_{counts[name]}"


@functools.cache  # Horovod starts once in a process, and ends with it
def _started() -> Any:
    """Horovod's names, once it has connected all ranks. Every rank comes here when it traces its first exchange.

    Raises:
        MissingPackage: on every rank.
    """
    ranks, horovod, failure = world.current(), None, ""
    try:
        horovod = importlib.import_module("horovod.tensorflow")
        if not horovod.mpi_built():
            failure = "it was built without MPI (HOROVOD_WITH_MPI=1)"
    except Exception as error:  # a compiled library, for another TensorFlow perhaps
        failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    _stop_where_not(ranks.allgather(failure, "load Horovod"))
    assert horovod is not None
    try:
        horovod.init()
        if (horovod.rank(), horovod.size()) != (ranks.rank, ranks.size):
            failure = f"it takes rank {ranks.rank} of {ranks.size} for rank {horovod.rank()} of {horovod.size()}"
    except Exception as error:
        failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    _stop_where_not(ranks.allgather(failure, "start Horovod"))
    return horovod


def _stop_where_not(failures: Sequence[str]) -> None:
    for rank, failure in enumerate(failures):
        if failure:
            raise MissingPackage(
                f"--transport horovod: Horovod does not work on rank {rank}: {failure}. Install it again with the "
                "TensorFlow and the MPI that are used here (docs/exchange.md, Horovod as the transport), or leave out "
                "--transport horovod."
            )
