"""Horovod's collectives as TensorFlow ops, with the gradients that Horovod registers for them.

Eagerly an op is a call; in a graph it is a stateful `tf.numpy_function`, which a `tf.function` runs in program order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import errors
from matex_tf.core import trace, world
from matex_tf.errors import MatexError
from matex_tf.features.horovod.names.core import basics, graph_errors, graph_names
from matex_tf.features.horovod.names.core.basics import OP_NAMES, Adasum, Average, Sum
from matex_tf.features.horovod.names.core.exceptions import HorovodInternalError
from matex_tf.features.horovod.names.core.process_sets import ProcessSet, global_process_set
from matex_tf.features.horovod.names.core.requests import Call, divides, has_rows, splits_fit

#: Autograph need not rewrite what has no `if` on a tensor: tracing takes half as long without.
as_it_is = tf.autograph.experimental.do_not_convert

_HALVES = (tf.float16, tf.bfloat16)


def run(call: Call, tensors: Sequence[tf.Tensor], dtypes: Sequence[tf.DType], among: ProcessSet) -> list[tf.Tensor]:
    """Carry out a collective of numeric tensors.

    Args:
        dtypes: of the results.

    Raises:
        tf.errors.FailedPreconditionError: on every rank, where ranks came with different things.
        tf.errors.InvalidArgumentError: on every rank, where one had an argument that cannot be; on a rank that is not
            in the process set.
    """
    try:
        coordinator = among.coordinator
    except MatexError as error:
        raise graph_errors.as_op_error(error) from error
    if tf.executing_eagerly():
        try:
            with trace.span("op"):
                results = coordinator.perform(call, [_array(tensor) for tensor in tensors])
        except MatexError as error:
            raise graph_errors.as_op_error(error) from error
        return [tf.convert_to_tensor(result, dtype) for result, dtype in zip(results, dtypes, strict=True)]

    def perform(*arrays: np.ndarray) -> list[np.ndarray]:
        try:
            with trace.span("op"):
                return among.coordinator.perform(call, [np.asarray(array) for array in arrays])
        except MatexError as error:
            errors.remember(error)
            raise graph_errors.to_be_recognized(error) from None
        except HorovodInternalError as error:
            errors.remember(error.__cause__)
            raise HorovodInternalError(str(error)) from None
        except Exception as error:
            errors.remember(error)
            raise

    outputs = tf.numpy_function(perform, list(tensors), list(dtypes), stateful=True)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def _array(tensor: tf.Tensor) -> np.ndarray:
    """An eager tensor's values, without a copy; TensorFlow gives no array for a scalar of some dtypes."""
    return np.asarray(tensor) if tensor.shape.rank else np.asarray(tensor.numpy())


def dense(tensors: Sequence[Any], what: str) -> list[tf.Tensor]:
    """Tensors of values and variables.

    Args:
        tensors: anything that TensorFlow makes a tensor of.
        what: the collective that they are for, in errors.

    Raises:
        TypeError: a dtype that does not travel.
    """
    result = [tf.convert_to_tensor(tensor) for tensor in tensors]
    for tensor in result:
        if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool or tensor.dtype.is_complex):
            raise TypeError(f"hvd.{what} cannot send {tensor.dtype.name}; it can send numbers and bool.")
    return result


def count(among: ProcessSet) -> Any:
    """The number of ranks, to divide by: an int, or in a graph a tensor where ranks may be left behind."""
    if tf.executing_eagerly() or world.current().guard is None:
        return len(among.ranks)
    return value(lambda: np.array(len(among.ranks), np.int32))


def scaled(tensor: tf.Tensor, factor: float, divisor: Any = 1) -> tf.Tensor:
    """tensor * factor / divisor in the tensor's dtype: integers by way of float64, short floats by way of float32.

    Args:
        tensor: of any shape and any dtype of numbers.
        factor: 1 for none.
        divisor: an int, or an int32 scalar; 1 for none.
    """
    whole = isinstance(divisor, int) and divisor == 1
    if factor == 1.0 and whole:
        return tensor
    dtype = tensor.dtype
    wide = tf.float64 if dtype.is_integer else tf.float32 if dtype in _HALVES else dtype
    result = tf.cast(tensor, wide)
    if factor != 1.0:
        result = result * tf.cast(factor, wide)
    if not whole:
        result = result / tf.cast(divisor, wide)
    return tf.cast(result, dtype)


@as_it_is
def allreduce(
    tensors: Sequence[Any],
    op: int = Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    name: str | None = None,
    among: ProcessSet = global_process_set,
    labels: Sequence[str] | None = None,
) -> list[tf.Tensor]:
    """Reduce each of some tensors over the ranks; they travel together.

    Args:
        tensors: dense, the same shapes and dtypes on every rank.
        op: Average, Sum, Adasum, Min, Max or Product.
        prescale, postscale: factors before and after.
        name: by which ranks find one another.
        among: the ranks.
        labels: a name for each tensor, for messages.
    """
    given = dense(tensors, "allreduce")
    if not given:
        return []
    if op not in OP_NAMES:
        raise ValueError(f"hvd.allreduce has no op {op!r}; there is {', '.join(OP_NAMES.values())}.")
    for tensor in given:
        if tensor.dtype.is_bool or (op == Adasum and not tensor.dtype.is_floating):
            raise TypeError(f"hvd.allreduce cannot {OP_NAMES[op]} {tensor.dtype.name}: cast it first.")
    size = len(among.ranks)
    if op == Adasum and size & (size - 1):
        raise NotImplementedError("Running Adasum with non-power of 2 ranks is not supported yet.")
    how = "sum" if op in (Average, Sum) else OP_NAMES[op]
    params = OP_NAMES[op]
    if prescale != 1.0 or postscale != 1.0:
        params += f" with prescale factor {float(prescale)}, postscale factor {float(postscale)}"
    call_name = graph_names.name_of(name, "Allreduce", given)
    call = Call("allreduce", call_name, how, params=params, labels=labels)

    def backward(upstream: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return allreduce(upstream, Sum if op == Average else op, among=among, name=_again(call_name))

    parts = [scaled(tensor, prescale) for tensor in given]
    sums = _with_gradient(_alike(call, among), backward, parts)
    divisor = count(among) if op == Average else 1
    return [scaled(total, postscale, divisor) for total in sums]


@as_it_is
def allgather(
    tensors: Sequence[Any], name: str | None = None, among: ProcessSet = global_process_set
) -> list[tf.Tensor]:
    """Join each of some tensors along the first axis, in the order of ranks.

    Args:
        tensors: each (rows, …); how many rows may differ between ranks, the rest of the shape and the dtype may not.
        name: by which ranks find one another; None is enough where all make the same calls in one order, or the same
            graph.
        among: the ranks.
    """
    given = dense(tensors, "allgather")
    call_name = graph_names.name_of(name, "Allgather", given)
    call = Call("allgather", call_name, check=has_rows)
    dtypes = [*(tensor.dtype for tensor in given), tf.int32]
    counts: tf.Tensor = None

    def forward(*parts: tf.Tensor) -> list[tf.Tensor]:
        nonlocal counts
        *joined, counts = run(call, parts, dtypes, among)
        counts.set_shape([len(parts), len(among.ranks)])
        for rows, part in zip(joined, parts, strict=True):
            if part.shape.rank is not None and part.shape.rank > 0:
                rows.set_shape([None, *part.shape[1:]])
        return joined

    def backward(upstream: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        averaged = allreduce(upstream, Average, among=among, name=_again(call_name))
        place = among.rank()
        return [tf.split(grad, counts[i])[place] for i, grad in enumerate(averaged)]

    return _with_gradient(forward, backward, given)


@as_it_is
def broadcast(
    tensors: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    among: ProcessSet = global_process_set,
    labels: Sequence[str] | None = None,
) -> list[tf.Tensor]:
    """Give every rank `root_rank`'s tensors.

    Args:
        tensors: dense, the same shapes and dtypes on every rank.
        root_rank: among all ranks.
        name: by which ranks find one another; None is enough where all make the same calls in one order, or the same
            graph.
        among: the ranks.
        labels: a name for each tensor, for messages.

    Raises:
        tf.errors.InvalidArgumentError: `root_rank` is not among these ranks.
    """
    given = dense(tensors, "broadcast")
    if not given:
        return []
    if root_rank not in among.ranks:
        raise tf.errors.InvalidArgumentError(None, None, f"there is no rank {root_rank} in {among} to broadcast from.")
    call_name = graph_names.name_of(name, "Broadcast", given)
    root = among.ranks.index(root_rank)
    call = Call("broadcast", call_name, root=root, params=f"from rank {root_rank}", labels=labels)

    def backward(upstream: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        averaged = allreduce(upstream, Average, among=among, name=_again(call_name))
        return averaged if basics.rank() == root_rank else [grad * 0 for grad in averaged]

    return _with_gradient(_alike(call, among), backward, given)


@as_it_is
def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, among: ProcessSet = global_process_set
) -> list[tf.Tensor]:
    """Give each rank of a set some rows of this rank's tensor; returns what this rank receives, in the order of ranks,
    and how many rows came from each.

    Args:
        tensor: (rows, …), in the order of the ranks that they are for.
        splits: (ranks,), integers: how many rows each rank gets; None: as many each.
        name: by which ranks find one another; None is enough where all make the same calls in one order, or the same
            graph.
        among: the ranks.
    """
    given = dense([tensor], "alltoall")[0]
    size = len(among.ranks)
    call_name = graph_names.name_of(name, "Alltoall", [given])
    if splits is None:
        rows = tf.shape(given)[0] if given.shape.rank else tf.constant(0)
        parts = tf.fill([size], rows // size)
    else:
        parts = tf.convert_to_tensor(splits)
    call = Call("alltoall", call_name, check=splits_fit if splits is not None else divides)
    back: tf.Tensor = None

    def forward(values: tf.Tensor, counts: tf.Tensor) -> list[tf.Tensor]:
        received, from_each = run(call, [values, counts], [values.dtype, counts.dtype], among)
        received.set_shape([None, *values.shape[1:]] if values.shape.rank else None)
        from_each.set_shape([size])
        nonlocal back
        back = from_each
        return [received, from_each]

    def backward(upstream: Sequence[tf.Tensor]) -> list[Any]:
        return [alltoall(upstream[0], back, among=among, name=_again(call_name))[0], None]

    return _with_gradient(forward, backward, [given, parts])


@as_it_is
def reducescatter(
    tensors: Sequence[Any],
    op: int = Average,
    prescale: float = 1.0,
    postscale: float = 1.0,
    name: str | None = None,
    among: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Reduce each of some tensors over the ranks; each rank gets its own rows of the result.

    Args:
        tensors: each (rows, …), the same shapes and dtypes on every rank.
        op: Average or Sum.
        prescale, postscale: factors before and after.
        name: by which ranks find one another; None is enough where all make the same calls in one order, or the same
            graph.
        among: the ranks.

    Raises:
        NotImplementedError: another op.
    """
    given = dense(tensors, "reducescatter")
    if op not in (Average, Sum):
        raise NotImplementedError("hvd.reducescatter knows the ops Average and Sum.")
    call_name = graph_names.name_of(name, "Reducescatter", given)
    params = f"{OP_NAMES[op]} with factors {float(prescale)}, {float(postscale)}"
    call = Call("reducescatter", call_name, params=params, check=has_rows)

    def forward(*parts: tf.Tensor) -> list[tf.Tensor]:
        own = run(call, parts, [part.dtype for part in parts], among)
        for rows, part in zip(own, parts, strict=True):
            rows.set_shape([None, *part.shape[1:]] if part.shape.rank else None)
        return own

    def backward(upstream: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        # What is scaled outside, by 1 / size for Average, has its own gradient; Horovod has a factor of size beside it.
        grads = [grad * tf.cast(count(among), grad.dtype) for grad in upstream]
        return allgather(grads, among=among, name=_again(call_name))

    own = _with_gradient(forward, backward, [scaled(tensor, prescale) for tensor in given])
    divisor = count(among) if op == Average else 1
    return [scaled(rows, postscale, divisor) for rows in own]


@as_it_is
def join() -> tf.Tensor:
    """Take part, with zeros, in what the other ranks do, until all have joined; int32, the last rank that did."""

    def wait() -> np.ndarray:
        return np.array(basics.coordinator().perform(Call("join")), np.int32)

    return value(wait)


@as_it_is
def barrier(name: str | None = None, among: ProcessSet = global_process_set) -> Any:
    """Wait until every rank is here. In a graph, the op that does it.

    Args:
        name: by which ranks find one another; None is enough where all make the same calls in one order, or the same
            graph.
        among: the ranks.
    """
    done = run(Call("barrier", graph_names.name_of(name, "Barrier")), [], [], among)
    return None if tf.executing_eagerly() else done[0]


def value(make: Callable[[], np.ndarray]) -> tf.Tensor:
    """int32 scalar, made when the op is run."""
    if tf.executing_eagerly():
        return tf.constant(make())
    value = tf.numpy_function(make, [], tf.int32, stateful=True)
    value.set_shape([])
    return value


def _alike(call: Call, among: ProcessSet) -> Callable[..., list[tf.Tensor]]:
    """What makes a call whose results have the shapes and dtypes of what is given."""

    def forward(*parts: tf.Tensor) -> list[tf.Tensor]:
        results = run(call, parts, [part.dtype for part in parts], among)
        for result, part in zip(results, parts, strict=True):
            result.set_shape(part.shape)
        return results

    return forward


def _with_gradient(
    forward: Callable[..., list[tf.Tensor]],
    backward: Callable[[Sequence[tf.Tensor]], list[Any]],
    tensors: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    @tf.custom_gradient
    def op(*parts: tf.Tensor) -> Any:
        return tuple(forward(*parts)), lambda *upstream: backward(upstream)

    return list(op(*tensors))


def _again(name: str) -> str | None:
    """The name of the collective in the gradient of another."""
    return f"{name}_grad" if name else None
