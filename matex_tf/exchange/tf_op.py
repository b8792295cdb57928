"""The one TensorFlow op through which tensors reach the exchange.

It is a stateful `tf.numpy_function`: stateful ops of a `tf.function` run in program order, which is the same on every
rank, so that collectives need no negotiation. XLA cannot compile it; a step that exchanges is not XLA-compiled.
"""

from __future__ import annotations

import collections
import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from matex_tf import errors, settings
from matex_tf.core import trace, world
from matex_tf.exchange import overlap, process_group
from matex_tf.exchange.bucket_plan import BucketPlan, check_dtypes


def sum_over_ranks(
    tensors: Sequence[tf.Tensor], what: str, labels: Sequence[str], coded: bool = False
) -> list[tf.Tensor]:
    """Sum each tensor over all ranks.

    Args:
        tensors: dense tensors of any shape; dtypes of `reduction.SUMMED_AS`.
        what: the purpose, shown where ranks have gone different ways.
        labels: a name for each tensor; ranks whose names, dtypes or shapes differ stop with RanksDisagree.
        coded: whether the codec of the settings is used between nodes.

    Returns:
        The sums, shapes and dtypes as given, the same bits on every rank.

    Raises:
        MatexError: a dtype that cannot be summed.
    """
    if not tensors:
        return []
    check_dtypes([tensor.dtype.name for tensor in tensors], labels)

    known = all(tensor.shape.is_fully_defined() for tensor in tensors)
    plan = BucketPlan.of(what, labels, tensors, coded) if known else None
    if plan is None or len(plan.buckets) == 1:
        results = _at_once(tensors, what, labels, coded)
    elif settings.current().schedule == "chained":
        results = _chained(tensors, plan)
    else:
        results = _apart(tensors, plan, 1 if settings.current().schedule == "funneled" else overlap.CONCURRENT)
    for result, tensor in zip(results, tensors, strict=True):
        result.set_shape(tensor.shape)
    return results


def _at_once(tensors: Sequence[tf.Tensor], what: str, labels: Sequence[str], coded: bool) -> list[tf.Tensor]:
    """One op for all tensors; shapes may be known when it runs and not before."""
    plan: BucketPlan | None = None

    def exchange(*arrays: np.ndarray) -> list[np.ndarray]:
        nonlocal plan
        if world.current().is_single:
            return list(arrays)
        if plan is None or plan.shapes != [array.shape for array in arrays]:
            plan = BucketPlan.of(what, labels, arrays, coded, at_once=True)
        return process_group.sum_planned(world.current(), plan, arrays)

    return call(exchange, tensors, [tensor.dtype for tensor in tensors])


def _chained(tensors: Sequence[tf.Tensor], plan: BucketPlan) -> list[tf.Tensor]:
    """One op for each bucket, one after the other."""
    results: list[tf.Tensor | None] = [None] * len(tensors)
    before: list[tf.Tensor] = []
    for number, bucket in enumerate(plan.buckets):

        def exchange(*arrays: np.ndarray, number: int = number) -> list[np.ndarray]:
            ranks = world.current()
            return list(arrays) if ranks.is_single else process_group.of(ranks, plan).sum(plan, number, arrays)

        own = [tensors[member] for member in bucket.members]
        with tf.control_dependencies(before):
            sums = call(exchange, own, [tensor.dtype for tensor in own])
        before = sums[:1]
        for member, total in zip(bucket.members, sums, strict=True):
            results[member] = total
    return results


def _apart(tensors: Sequence[tf.Tensor], plan: BucketPlan, threads: int) -> list[tf.Tensor]:
    """Two ops for each bucket: one that hands it to a thread, and, behind all of those, one that waits for the sums.

    No thread of TensorFlow's is held up while there is a gradient to compute: posting does not wait, and nothing is
    collected before all is posted. With one thread for ops nothing deadlocks, and nothing overlaps: TensorFlow takes
    what computes first.
    """
    results: list[tf.Tensor | None] = [None] * len(tensors)
    owned = [[tensors[member] for member in bucket.members] for bucket in plan.buckets]
    posted = []
    for number, own in enumerate(owned):

        def post(*arrays: np.ndarray, number: int = number) -> list[np.ndarray]:
            ranks = world.current()
            if not ranks.is_single:
                overlap.threads_of(process_group.of(ranks, plan), threads).post(plan, number, arrays)
            return [np.array(number, np.int32)]

        posted += call(post, own, [tf.int32], lambda arrays: [np.array(0, np.int32)])
    for number, (bucket, own) in enumerate(zip(plan.buckets, owned, strict=True)):

        def collect(*arrays: np.ndarray, number: int = number) -> list[np.ndarray]:
            ranks = world.current()
            if ranks.is_single:
                return list(arrays)
            return overlap.threads_of(process_group.of(ranks, plan), threads).collect(plan, number)

        with tf.control_dependencies(posted):
            sums = call(collect, own, [tensor.dtype for tensor in own])
        for member, total in zip(bucket.members, sums, strict=True):
            results[member] = total
    return results


def allgather_slices(slices: tf.IndexedSlices, what: str, label: str) -> tf.IndexedSlices:
    """Add up a sparse gradient over all ranks.

    The rows are joined in the order of ranks. Rows of one index stay apart: that is what one rank has for a batch in
    which an index occurs more than once, and Keras' Adam, which squares rows before it adds them, tells the two apart.
    Where every rank looked up the very same indices (positions, say, and not rows of a batch) the values are summed.
    So are the rows of one index where TensorFlow has made the indices of a batch distinct (a sparse batch times a
    matrix does, and `embedding_lookup_sparse`): one rank has each once. That is seen in a graph; what is run eagerly is
    known by `note_distinct`.
    """
    known_as_distinct = _made_distinct(slices.indices)
    check_dtypes([slices.values.dtype.name], [label])

    def exchange(values: np.ndarray, indices: np.ndarray) -> list[np.ndarray]:
        ranks = world.current()
        mine = len(indices), zlib.crc32(indices.tobytes()), known_as_distinct
        looked_up = ranks.allgather(mine, f"{what}: indices of {label}")
        distinct = any(known for *_, known in looked_up)
        if len({(rows, checksum) for rows, checksum, _ in looked_up}) == 1:
            return [*process_group.sum_arrays(ranks, [values], what, [label]), indices]
        rows = values.view(np.uint16) if values.dtype.name == "bfloat16" else values
        joined = ranks.allgather_rows(rows, f"{what}: values of {label}").view(values.dtype)
        places = ranks.allgather_rows(indices, f"{what}: indices of {label}")
        return _add_up(joined, places) if distinct else [joined, places]

    values, indices = call(exchange, [slices.values, slices.indices], [slices.values.dtype, slices.indices.dtype])
    values.set_shape([None, *slices.values.shape[1:]])
    indices.set_shape([None])
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _made_distinct(indices: tf.Tensor) -> bool:
    """Whether indices come from an op that leaves out what occurs twice."""
    if tf.executing_eagerly():
        place = _place(indices)
        return place is not None and any(place == _place(one) for one in _distinct)
    operation = indices.op
    while operation is not None and operation.type in ("Identity", "Reshape", "Cast"):
        operation = operation.inputs[0].op
    return operation is not None and operation.type in ("Unique", "UniqueV2")


#: What `tf.unique` has given of late, eagerly; held, so that nothing else takes its place in memory.
_distinct: collections.deque[tf.Tensor] = collections.deque(maxlen=64)


def note_distinct(indices: tf.Tensor) -> None:
    """Say of an eager tensor that no index occurs twice in it; a gradient's indices lie in the same memory."""
    _distinct.append(indices)


def _place(tensor: tf.Tensor) -> int | None:
    """Where an eager tensor lies in memory; None where it has no element, or lies on a device."""
    if not tensor.shape.num_elements() or "CPU" not in tensor.device:
        return None
    return int(np.frombuffer(memoryview(tensor), np.uint8).ctypes.data)


def _add_up(values: np.ndarray, indices: np.ndarray) -> list[np.ndarray]:
    """Each index once, with the sum of its rows."""
    once, position = np.unique(indices, return_inverse=True)
    sums = np.zeros((len(once), *values.shape[1:]), values.dtype)
    np.add.at(sums, position.reshape(-1), values)
    return [sums, once]


_collected: list[BaseException] | None = None  # what `collecting` has caught so far; None outside of it


@contextlib.contextmanager
def collecting() -> Iterator[None]:
    """Run a step such that an error of its exchange is raised behind it, as it is.

    An exception that leaves an op is reported by TensorFlow's log, with a traceback on every rank, and comes out as one
    of TensorFlow's own. Inside this block the ops of a step end quietly after the first error.

    Raises:
        MatexError: the first error of the exchange, at the end of the block.
    """
    global _collected
    before, _collected = _collected, []
    try:
        yield
    finally:
        caught, _collected = _collected, before
    if caught:
        raise caught[0]


def call(
    function: Callable[..., list[np.ndarray]],
    inputs: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
    otherwise: Callable[[Sequence[np.ndarray]], list[np.ndarray]] = list,
) -> list[tf.Tensor]:
    """The op: gives the function's results.

    Args:
        function: from arrays to arrays; runs in one of TensorFlow's threads.
        dtypes: of the results.
        otherwise: from the inputs, what the op gives where a step ends quietly.
    """

    def guarded(*arrays: np.ndarray) -> list[np.ndarray]:
        if _collected:
            return otherwise(arrays)
        try:
            with trace.span("op"):
                return function(*arrays)
        except Exception as error:
            if _collected is not None:
                _collected.append(error)
                return otherwise(arrays)
            errors.remember(error)
            raise

    outputs = tf.numpy_function(guarded, inputs, list(dtypes), stateful=True)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
