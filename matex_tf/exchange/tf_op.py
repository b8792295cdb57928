"""The one TensorFlow op through which tensors reach the exchange.

It is a stateful `tf.numpy_function`: stateful ops of a `tf.function` run in program order, which is the same on every
rank, so that collectives need no negotiation. XLA cannot compile it; with `jit_compile=True` it compiles what
lies around it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import errors, settings
from matex_tf.core import trace, world
from matex_tf.core.mismatch import checksum
from matex_tf.errors import MatexError
from matex_tf.exchange import overlap, process_group, virtual_ranks
from matex_tf.exchange.bucket import BucketPlan, check_dtypes, empty
from matex_tf.exchange.node.reduction import SUMMED_AS
from matex_tf.exchange.op_inputs import Inputs
from matex_tf.exchange.ordered_sum import OrderedSum
from matex_tf.state import run_state


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
    if settings.current().reproducible and virtual_ranks.current() is not None:
        whole: list[tf.Tensor] = virtual_ranks.meet(
            (what, *labels), list(tensors), lambda given: sum_over_virtual_ranks(given, what, labels)
        )
        return list(whole)

    known = all(tensor.shape.is_fully_defined() for tensor in tensors)
    plan = BucketPlan.of(what, labels, tensors, coded) if known else None
    if plan is None or len(plan.buckets) == 1:
        results = _at_once(tensors, what, labels, coded)
    elif settings.current().schedule == "chained":
        results = _chained(tensors, plan, labels)
    else:
        threads = 1 if settings.current().schedule == "funneled" else overlap.CONCURRENT
        results = _apart(tensors, plan, labels, threads)
    for result, tensor in zip(results, tensors, strict=True):
        result.set_shape(tensor.shape)
    return results


def sum_over_virtual_ranks(given: Sequence[Sequence[tf.Tensor]], what: str, labels: Sequence[str]) -> list[tf.Tensor]:
    """Sum over all virtual ranks, in their order.

    Args:
        given: for each virtual rank of this rank, its tensors.
        what, labels: see `sum_over_ranks`.
    """
    count, dtypes = len(labels), [tensor.dtype for tensor in given[0]]
    summed_as = [tf.as_dtype(SUMMED_AS[dtype.name]) for dtype in dtypes]
    add = OrderedSum(settings.current().reproducible, what, labels)

    def exchange(*arrays: np.ndarray) -> list[np.ndarray]:
        values = [arrays[first : first + count] for first in range(0, len(arrays), count)]
        return add(world.current(), values)

    flat = [tf.cast(tensor, dtype) for own in given for tensor, dtype in zip(own, summed_as, strict=True)]
    sums = call(exchange, flat, summed_as, lambda arrays: list(arrays[:count]))
    for total, tensor in zip(sums, given[0], strict=True):
        total.set_shape(tensor.shape)
    return [tf.cast(total, dtype) for total, dtype in zip(sums, dtypes, strict=True)]


def _at_once(tensors: Sequence[tf.Tensor], what: str, labels: Sequence[str], coded: bool) -> list[tf.Tensor]:
    """One op for all tensors; shapes may be known when it runs and not before."""
    plan: BucketPlan | None = None
    inputs = Inputs(tensors)

    def exchange(*given: np.ndarray) -> list[np.ndarray]:
        nonlocal plan
        if world.current().is_single:
            return inputs.multiplied(given)
        arrays = inputs.arrays(given)
        if plan is None or plan.shapes != [array.shape for array in arrays]:
            plan = BucketPlan.of(what, labels, arrays, coded, at_once=True)
        return process_group.sum_planned(world.current(), plan, arrays)

    return call(
        exchange, inputs.tensors, _dtypes(tensors), inputs.multiplied, Given(what, labels, read=inputs.multiplied)
    )


def _chained(tensors: Sequence[tf.Tensor], plan: BucketPlan, labels: Sequence[str]) -> list[tf.Tensor]:
    """One op for each bucket, one after the other."""
    results: list[tf.Tensor | None] = [None] * len(tensors)
    before: list[tf.Tensor] = []
    for number, bucket in enumerate(plan.buckets):
        own = [tensors[member] for member in bucket.members]
        inputs = Inputs(own)

        def exchange(*given: np.ndarray, number: int = number, inputs: Inputs = inputs) -> list[np.ndarray]:
            ranks = world.current()
            if ranks.is_single:
                return inputs.multiplied(given)
            return process_group.of(ranks, plan).sum(plan, number, inputs.arrays(given))

        with tf.control_dependencies(before):
            noted = Given(plan.what, [labels[member] for member in bucket.members], read=inputs.multiplied)
            sums = call(exchange, inputs.tensors, _dtypes(own), inputs.multiplied, noted)
        before = sums[:1]
        for member, total in zip(bucket.members, sums, strict=True):
            results[member] = total
    return results


def _apart(tensors: Sequence[tf.Tensor], plan: BucketPlan, labels: Sequence[str], threads: int) -> list[tf.Tensor]:
    """Two ops for each bucket: one that hands it to a thread, and, after all of those, one that waits for the sums.

    No thread of TensorFlow's is held up while there is a gradient to compute: posting does not wait, and nothing is
    collected before all is posted. With one thread for ops nothing deadlocks, and nothing overlaps: TensorFlow takes
    what computes first.
    """
    results: list[tf.Tensor | None] = [None] * len(tensors)
    owned = [Inputs([tensors[member] for member in bucket.members]) for bucket in plan.buckets]
    posted = []
    for number, inputs in enumerate(owned):

        def post(*given: np.ndarray, number: int = number, inputs: Inputs = inputs) -> list[np.ndarray]:
            ranks = world.current()
            if not ranks.is_single:
                overlap.threads_of(process_group.of(ranks, plan), threads).post(plan, number, inputs.arrays(given))
            return [np.array(number, np.int32)]

        posted += call(post, inputs.tensors, [tf.int32], lambda arrays: [np.array(0, np.int32)])
    for number, (bucket, inputs) in enumerate(zip(plan.buckets, owned, strict=True)):

        def collect(*given: np.ndarray, number: int = number, inputs: Inputs = inputs) -> list[np.ndarray]:
            ranks = world.current()
            if ranks.is_single:
                return inputs.multiplied(given)
            return overlap.threads_of(process_group.of(ranks, plan), threads).collect(plan, number)

        with tf.control_dependencies(posted):
            noted = Given(plan.what, [labels[member] for member in bucket.members], read=inputs.multiplied)
            types = _dtypes([tensors[member] for member in bucket.members])
            sums = call(collect, inputs.tensors, types, inputs.multiplied, noted)
        for member, total in zip(bucket.members, sums, strict=True):
            results[member] = total
    return results


def gather_over_ranks(tensors: Sequence[tf.Tensor], what: str, labels: Sequence[str]) -> list[tf.Tensor]:
    """Join each tensor along its first axis, in the order of ranks.

    Args:
        tensors: of any dtype; first axes may differ between ranks, the others may not.
        what, labels: see `sum_over_ranks`.

    Returns:
        The joined tensors, dtypes as given, the same on every rank.
    """
    names = [f"{what}: {label}" for label in labels]

    def exchange(*given: np.ndarray) -> list[np.ndarray]:
        ranks = world.current()
        return [_joined(ranks, array, name) for array, name in zip(given, names, strict=True)]

    results = call(exchange, tensors, _dtypes(tensors), lambda arrays: list(arrays))
    for result, tensor in zip(results, tensors, strict=True):
        if tensor.shape.rank is not None:
            result.set_shape([None, *tensor.shape[1:]])
    return results


def send_over_ranks(
    tensors: Sequence[tf.Tensor], counts: tf.Tensor, what: str, label: str
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Give each rank rows of its own, and take those that every rank has for this one; they travel together.

    Args:
        tensors: `[rows, …]`, of any dtype, in the order of the ranks that get the rows; first axes may differ between
            ranks, the others may not.
        counts: int64 `[ranks]`: how many rows each rank gets.
        what: see `sum_over_ranks`. label: a name for the rows.

    Returns:
        The rows of each tensor in the order of the ranks that gave them; how many each of them gave, as `counts`.
    """
    name = f"{what}: {label}"

    def exchange(*given: np.ndarray) -> list[np.ndarray]:
        *arrays, splits = given
        if world.current().is_single:
            return list(given)
        rows = [_as_bytes(array) for array in arrays]
        packed = rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)
        received, of_each = world.current().alltoall_rows(packed, splits.tolist(), name)
        ends = np.cumsum([row.shape[1] for row in rows])[:-1]
        pieces = [received] if len(rows) == 1 else np.split(received, ends, axis=1)
        mine = [_from_bytes(piece, array) for piece, array in zip(pieces, arrays, strict=True)]
        return [*mine, np.array(of_each, splits.dtype)]

    *results, of_each = call(exchange, [*tensors, counts], _dtypes([*tensors, counts]))
    for result, tensor in zip(results, tensors, strict=True):
        result.set_shape([None, *tensor.shape[1:]])
    of_each.set_shape(counts.shape)
    return results, of_each


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of each row of an array: `[rows, bytes]`."""
    width = array.dtype.itemsize * math.prod(array.shape[1:])
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(len(array), width)


def _from_bytes(rows: np.ndarray, like: np.ndarray) -> np.ndarray:
    """What `_as_bytes` has made of an array `like` this one, but for the number of rows."""
    return np.ascontiguousarray(rows).reshape(-1).view(like.dtype).reshape(len(rows), *like.shape[1:])


def scatter_over_ranks(
    tensors: Sequence[tf.Tensor], lengths: Sequence[Sequence[int]], what: str, labels: Sequence[str]
) -> list[tf.Tensor]:
    """Sum each tensor over all ranks, bucket by bucket, and keep this rank's part of the sums alone.

    Args:
        tensors: of shapes that are known; see `sum_over_ranks`.
        lengths: for each of them, the elements that each rank gets.
        what, labels: see `sum_over_ranks`.

    Returns:
        This rank's part of each sum, flat.
    """
    check_dtypes([tensor.dtype.name for tensor in tensors], labels)
    ranks = world.of_job()
    ends = [(sum(sizes[: ranks.rank]), sum(sizes[: ranks.rank + 1])) for sizes in lengths]
    results: list[Any] = [None] * len(tensors)
    before: list[tf.Tensor] = []
    for bucket in BucketPlan.of(what, labels, tensors).buckets:
        own, mine = [tensors[member] for member in bucket.members], [ends[member] for member in bucket.members]
        # A plan for each: what others read of a bucket lies in memory as large as that, and is given back.
        plan = BucketPlan.of(what, [labels[member] for member in bucket.members], own, at_once=True)

        def exchange(
            *given: np.ndarray, plan: BucketPlan = plan, mine: Sequence[tuple[int, int]] = mine
        ) -> list[np.ndarray]:
            sums = given if world.current().is_single else process_group.sum_planned(world.current(), plan, given)
            return [_copied(one.reshape(-1)[low:high]) for one, (low, high) in zip(sums, mine, strict=True)]

        def nothing(given: Sequence[np.ndarray], mine: Sequence[tuple[int, int]] = mine) -> list[np.ndarray]:
            return [one.reshape(-1)[low:high] for one, (low, high) in zip(given, mine, strict=True)]

        with tf.control_dependencies(before):
            parts = call(exchange, own, _dtypes(own), nothing)
        before = parts[:1]
        for member, part, (low, high) in zip(bucket.members, parts, mine, strict=True):
            part.set_shape([high - low])
            results[member] = part
    return results


def _copied(array: np.ndarray) -> np.ndarray:
    """A copy of an array in memory that TensorFlow takes without another copy."""
    copy = empty(array.size, array.dtype)
    np.copyto(copy, array)
    return copy


def join_parts(
    parts: Sequence[tf.Tensor], lengths: Sequence[Sequence[int]], what: str, labels: Sequence[str]
) -> list[tf.Tensor]:
    """Join flat tensors of which each rank has a part; they travel together.

    Args:
        parts: this rank's part of each.
        lengths: for each of them, the elements that each rank has.
        what, labels: see `sum_over_ranks`.

    Returns:
        The joined tensors, flat, the same on every rank.
    """
    counts = np.array(lengths)  # (tensors, ranks)
    sizes, types = counts.sum(1), [np.dtype(part.dtype.as_numpy_dtype) for part in parts]
    plan = BucketPlan(what, labels, [(int(size),) for size in sizes], types, sys.maxsize)

    def exchange(*given: np.ndarray) -> list[np.ndarray]:
        ranks = world.current()
        if ranks.is_single:
            return list(given)
        lows = counts[:, : ranks.rank].sum(1).tolist()
        wholes = process_group.of(ranks, plan).join(plan, given, lows)
        return _by_message(ranks, given, counts, plan) if wholes is None else wholes

    def nothing(given: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.zeros(size, part.dtype) for size, part in zip(sizes, given, strict=True)]

    results = call(exchange, parts, _dtypes(parts), nothing)
    for size, result in zip(sizes, results, strict=True):
        result.set_shape([int(size)])
    return results


def _by_message(
    ranks: world.World, given: Sequence[np.ndarray], counts: np.ndarray, plan: BucketPlan
) -> list[np.ndarray]:
    """Join tensors of which each rank has a part by one message for each dtype."""
    wholes: list[Any] = [None] * len(given)
    for number, bucket in enumerate(plan.buckets):
        mine = np.concatenate([given[member] for member in bucket.members])
        joined = _joined(ranks, mine, plan.title(number))
        of_each = counts[list(bucket.members)]
        pieces = np.split(joined, np.cumsum(of_each.T.reshape(-1))[:-1])  # of the first rank, of the second, …
        for place, member in enumerate(bucket.members):
            wholes[member] = np.concatenate(pieces[place :: len(bucket.members)])
    return wholes


def _joined(ranks: world.World, array: np.ndarray, name: str) -> np.ndarray:
    if array.dtype.name == "bfloat16":  # MPI does not know it
        return ranks.allgather_rows(array.view(np.uint16), name).view(array.dtype)
    return ranks.allgather_rows(array, name)


def _dtypes(tensors: Sequence[tf.Tensor]) -> list[tf.DType]:
    return [tensor.dtype for tensor in tensors]


def allgather_slices(given: Sequence[tf.IndexedSlices], what: str, label: str) -> tf.IndexedSlices:
    """Add up the sparse gradients of the virtual ranks of all ranks; without virtual ranks, of the ranks.

    The rows are joined in the order of ranks. Rows of one index stay apart: that is what one rank has for a batch in
    which an index occurs more than once, and Keras' Adam, which squares rows before it adds them, tells the two apart.
    Where every rank looked up the very same indices (positions, say, and not rows of a batch) the values are summed.
    So are the rows of one index where TensorFlow has made the indices of a batch distinct (a sparse batch times a
    matrix does, and `embedding_lookup_sparse`): one rank has each once. That is seen in a graph; what is run eagerly is
    known by `note_distinct`. With virtual ranks the sum of values is that of `OrderedSum`.

    Args:
        given: those of each virtual rank of this rank, of any dtype in `SUMMED_AS`; a single one without virtual ranks.
            Ranks may have different numbers of rows.
        what: the purpose, see `World.barrier`.
        label: the name of the variable.
    """
    slices = given[0]
    known_as_distinct = [_made_distinct(own.indices) for own in given]
    check_dtypes([slices.values.dtype.name], [label])
    virtual = settings.current().reproducible
    ordered = OrderedSum(virtual, what, [label]) if virtual else None

    def exchange(*arrays: np.ndarray) -> list[np.ndarray]:
        ranks, values, indices = world.current(), arrays[0::2], arrays[1::2]
        mine = [(len(one), checksum(one), known) for one, known in zip(indices, known_as_distinct, strict=True)]
        looked_up: list[tuple[int, int, bool]] = sum(ranks.allgather(mine, f"{what}: indices of {label}"), [])
        distinct = any(known for *_, known in looked_up)
        if len({(rows, of_indices) for rows, of_indices, _ in looked_up}) == 1:
            if ordered is None:
                return [*process_group.sum_arrays(ranks, [values[0]], what, [label]), indices[0]]
            wide = SUMMED_AS[values[0].dtype.name]
            total = ordered(ranks, [[one.astype(wide, copy=False)] for one in values])[0]
            return [total.astype(values[0].dtype, copy=False), indices[0]]
        own, dtype = np.concatenate(values) if len(values) > 1 else values[0], values[0].dtype
        rows = own.view(np.uint16) if dtype.name == "bfloat16" else own
        joined = ranks.allgather_rows(rows, f"{what}: values of {label}").view(dtype)
        own = np.concatenate(indices) if len(indices) > 1 else indices[0]
        places = ranks.allgather_rows(own, f"{what}: indices of {label}")
        return _add_up(joined, places) if distinct else [joined, places]

    shape = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    noted = None if shape is None else Given(what, [f"the gradient of {label}"], tuple(int(size) for size in shape))
    inputs = [tensor for own in given for tensor in (own.values, own.indices)]
    types = [slices.values.dtype, slices.indices.dtype]
    values, indices = call(exchange, inputs, types, lambda arrays: list(arrays[:2]), given=noted)
    values.set_shape([None, *slices.values.shape[1:]])
    indices.set_shape([None])
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _made_distinct(indices: tf.Tensor) -> bool:
    """Whether indices come from an op that leaves out what occurs twice."""
    if tf.executing_eagerly():
        place = _place(indices)
        return place is not None and any(place == _place(one) for one in run_state.part(_Ops).distinct)
    operation = indices.op
    while operation is not None and operation.type in ("Identity", "Reshape", "Cast"):
        operation = operation.inputs[0].op
    return operation is not None and operation.type in ("Unique", "UniqueV2")


def note_distinct(indices: tf.Tensor) -> None:
    """Say of an eager tensor that no index occurs twice in it; a gradient's indices lie in the same memory."""
    run_state.part(_Ops).distinct.append(indices)


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


@contextlib.contextmanager
def collecting() -> Iterator[None]:
    """Run a step such that an error of its exchange is raised after it, as it is.

    An exception that leaves an op is reported by TensorFlow's log, with a traceback on every rank, and comes out as one
    of TensorFlow's own. Inside this block the ops of a step end quietly after the first error.

    Raises:
        MatexError: the first error of the exchange, at the end of the block.
    """
    ops = run_state.part(_Ops)
    caught: list[BaseException] = []
    before, ops.collected = ops.collected, caught
    try:
        yield
    except Exception:
        if not caught:
            raise
        # Else an op has failed on what the exchange has given in place of a result.
    finally:
        ops.collected = before
    if caught:
        raise caught[0]


@dataclasses.dataclass(frozen=True)
class Given:
    """What an op gives to the exchange.

    Attributes:
        what: the purpose.
        labels: of the tensors that it sums.
        shape: of the tensor whose values and indices it joins; None for an op that sums.
        read: from the arrays that it gets, those that it gives.
    """

    what: str
    labels: Sequence[str]
    shape: tuple[int, ...] | None = None
    read: Callable[[Sequence[np.ndarray]], list[np.ndarray]] = list


class _Ops:
    """Of a run: what its ops know. One is made before the step that runs it begins, runs in a thread of TensorFlow's,
    and gets tensors alone.

    Attributes:
        distinct: what `tf.unique` has given of late, eagerly; held, so that nothing else takes its place in memory.
        collected: what `collecting` has caught so far; None outside of it.
        watch: what `watching` sees, and whether steps run as on one rank; None outside of it.
    """

    def __init__(self) -> None:
        self.distinct: collections.deque[tf.Tensor] = collections.deque(maxlen=64)
        self.collected: list[BaseException] | None = None
        self.watch: tuple[dict[object, tuple[Given, list[np.ndarray]]], bool] | None = None


@contextlib.contextmanager
def watching(alone: bool = False) -> Iterator[dict[object, tuple[Given, list[np.ndarray]]]]:
    """See what a step gives to the exchange.

    Args:
        alone: whether the ops inside of this block give what they give on one rank, and exchange nothing.

    Yields:
        For each op that says what it gives, in the order in which they run: that, and copies of the arrays that it got
        when it ran first.
    """
    ops = run_state.part(_Ops)
    seen: dict[object, tuple[Given, list[np.ndarray]]] = {}
    before, ops.watch = ops.watch, (seen, alone)
    try:
        yield seen
    finally:
        ops.watch = before


def watched() -> bool:
    """Whether the step that runs now is watched."""
    return run_state.part(_Ops).watch is not None


def is_trial() -> bool:
    """Whether the step that runs now is run by one rank for itself, and put back."""
    watch = run_state.part(_Ops).watch
    return watch is not None and watch[1]


#: Part of the names of these ops, by which they are told from those of a script.
OP_NAME = "matex_tf_exchange"


def call(
    function: Callable[..., list[np.ndarray]],
    inputs: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
    otherwise: Callable[[Sequence[np.ndarray]], list[np.ndarray]] = list,
    given: Given | None = None,
) -> list[tf.Tensor]:
    """The op: gives the function's results.

    Args:
        function: from arrays to arrays; runs in one of TensorFlow's threads.
        dtypes: of the results.
        otherwise: from the inputs, what the op gives on one rank, and where a step ends quietly.
        given: what it gives to the exchange, for `watching`.
    """

    if settings.current().reproducible and virtual_ranks.current() is not None:
        raise MatexError("--reproducible: a step looks at the rows of the whole batch, which it cannot yet.")

    def guarded(*arrays: np.ndarray) -> list[np.ndarray]:
        ops = run_state.part(_Ops)
        if ops.watch is not None:
            seen, alone = ops.watch
            if given is not None and guarded not in seen:
                seen[guarded] = given, [np.array(array) for array in given.read(arrays)]
            if alone:
                return otherwise(arrays)
        if ops.collected:
            return otherwise(arrays)
        try:
            with trace.span("op"):
                return function(*arrays)
        except Exception as error:
            if ops.collected is not None:
                ops.collected.append(error)
                return otherwise(arrays)
            errors.remember(error)
            raise

    outputs = tf.numpy_function(guarded, inputs, list(dtypes), stateful=True, name=OP_NAME)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
