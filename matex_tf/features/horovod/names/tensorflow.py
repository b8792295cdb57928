"""What `import horovod.tensorflow as hvd` gives."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from matex_tf.features.horovod.names.core import basics, ops, unsupported
from matex_tf.features.horovod.names.core.basics import *  # noqa: F403
from matex_tf.features.horovod.names.core.basics import Adasum, Average
from matex_tf.features.horovod.names.core.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from matex_tf.features.horovod.names.core.ops import barrier, join
from matex_tf.features.horovod.names.core.process_sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    remove_process_set,
)
from matex_tf.features.horovod.names.optimizers import gradients
from matex_tf.features.horovod.names.optimizers.compression import Compression
from matex_tf.features.horovod.names.optimizers.gradients import (
    DistributedGradientTape,
    PartialDistributedGradientTape,
    Reduction,
)
from matex_tf.features.horovod.names.optimizers.v1 import DistributedOptimizerV1
from matex_tf.features.horovod.names.optimizers.v1_adasum import DistributedAdasumOptimizer
from matex_tf.features.horovod.names.util import (
    _executing_eagerly,
    check_num_rank_power_of_2,
    gpu_available,
    handle_average_backwards_compatibility,
)


class _Basics:
    """The queries as attributes of one object, as `hvd.mpi_ops._basics` of Horovod has them."""

    _get_process_set_ids_and_ranks = staticmethod(get_process_set_ids_and_ranks)

    def __getattr__(self, name: str) -> Any:
        return getattr(basics, name)


_basics = _Basics()


def allreduce(
    tensor: Any, average: bool | None = None, device_dense: str = "", device_sparse: str = "",
    compression: Any = Compression.none, op: int | None = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, name: str | None = None, process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:  # fmt: skip
    """A tensor reduced over the ranks.

    Args:
        tensor: a tensor or a variable, of the same shape and dtype on every rank; `tf.IndexedSlices` are joined.
        average: older than `op`: True for Average, False for Sum.
        device_dense, device_sparse, ignore_name_scope: taken and ignored.
        compression: of floating-point tensors on their way.
        op: Average (the default), Sum, Adasum, Min, Max or Product.
        prescale_factor, postscale_factor: factors before and after.
        name: by which ranks find one another.
        process_set: the ranks that take part.

    Raises:
        tf.errors.FailedPreconditionError: on every rank, where shapes, dtypes or options differ.
    """
    how = handle_average_backwards_compatibility(op, average)
    return gradients.grouped([tensor], how, compression, prescale_factor, postscale_factor, name, process_set)[0]


def grouped_allreduce(
    tensors: Sequence[Any], average: bool | None = None, device_dense: str = "", device_sparse: str = "",
    compression: Any = Compression.none, op: int | None = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:  # fmt: skip
    """Several tensors reduced over the ranks, which travel together.

    Args:
        tensors: as `tensor` of `allreduce`, in the same order on every rank.

    The others: see `allreduce`.
    """
    how = handle_average_backwards_compatibility(op, average)
    return gradients.grouped(list(tensors), how, compression, prescale_factor, postscale_factor, name, process_set)


def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
    """The tensors of all ranks, joined along the first axis in the order of ranks.

    Args:
        tensor: (rows, …), no scalar; how many rows may differ between ranks, the rest of the shape and the dtype may
            not.
        name: by which ranks find one another; None is enough where all make the same calls in one order, or the same
            graph.
        ignore_name_scope: taken and ignored; with Horovod whether the name is without TensorFlow's name scope.
        process_set: the ranks that take part.
    """
    return ops.allgather([tensor], name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:  # fmt: skip
    """Several tensors, those of all ranks joined; see `allgather`."""
    return ops.allgather(tensors, name, process_set) if tensors else []


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:  # fmt: skip
    """`root_rank`'s tensor on every rank.

    Args:
        tensor: of the same shape and dtype on every rank.
        root_rank: among all ranks.
        name, ignore_name_scope, process_set: see `allgather`.
    """
    return ops.broadcast([tensor], root_rank, name, process_set)[0]


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Give every rank some rows of this rank's tensor, and take those that it gets from every rank.

    Args:
        tensor: (rows, …), in the order of the ranks that they are for.
        splits: (ranks,), integers: how many are for each rank; where it is None the same number for each.
        name, ignore_name_scope, process_set: see `allgather`.

    Returns:
        The rows that this rank got, in the order of ranks; with `splits` a pair of these and how many came from each.

    Raises:
        tf.errors.InvalidArgumentError: on every rank, where one's splits do not add up.
    """
    received, counts = ops.alltoall(tensor, splits, name, process_set)
    return received if splits is None else (received, counts)


def reducescatter(
    tensor: Any, device_dense: str = "", compression: Any = Compression.none, op: int = Average,
    name: str | None = None, process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> tf.Tensor:  # fmt: skip
    """This rank's rows of the Average or Sum over the ranks; the first ranks have one more if need be.

    Args:
        tensor: (rows, …), of the same shape and dtype on every rank.
        device_dense: taken and ignored; with Horovod the device on which the tensor is reduced.
        compression: of a floating-point tensor on its way.
        op: Average or Sum.
        name, ignore_name_scope, process_set: see `allgather`.
        prescale_factor, postscale_factor: factors before and after.

    Raises:
        NotImplementedError: another op.
    """
    small, context = compression.compress(tf.convert_to_tensor(tensor))
    own = ops.reducescatter([small], op, prescale_factor, postscale_factor, name, process_set)[0]
    return compression.decompress(own, context)


def grouped_reducescatter(
    tensors: Sequence[Any], device_dense: str = "", compression: Any = Compression.none, op: int = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> list[tf.Tensor]:  # fmt: skip
    """This rank's rows of several tensors, reduced over the ranks; see `reducescatter`."""
    if not tensors:
        return []
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    own = ops.reducescatter([small for small, _ in pairs], op, prescale_factor, postscale_factor, None, process_set)
    return [compression.decompress(rows, context) for rows, (_, context) in zip(own, pairs, strict=True)]


def DistributedOptimizer(
    optimizer: Any, name: str | None = None, use_locking: bool = False, device_dense: str = "",
    device_sparse: str = "", compression: Any = Compression.none, sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1, op: int = Average, gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False, num_groups: int = 0, groups: Any = None,
    process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True,
) -> Any:  # fmt: skip
    """An optimizer that averages gradients over the ranks before it applies them.

    Args:
        optimizer: of Keras, or of `tf.compat.v1.train`.
        name, use_locking: see `tf.compat.v1.train.Optimizer`; taken and ignored for an optimizer of Keras.
        op: Average, Sum or, for one of `tf.compat.v1.train`, Adasum, see `DistributedAdasumOptimizer`.

    The rest as in `horovod.keras.DistributedOptimizer`.
    """
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        from matex_tf.features.horovod.names import keras as of_keras

        return of_keras.DistributedOptimizer(
            optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
            backward_passes_per_step, average_aggregated_gradients, num_groups, groups, process_set,
            scale_local_gradients,
        )  # fmt: skip
    gradients.check_options(gradient_predivide_factor, op, num_groups, groups)
    if op == Adasum:
        if average_aggregated_gradients:
            raise ValueError("Adasum does not support average_aggregated_gradients == True")
        if process_set is not global_process_set:
            raise NotImplementedError("Adasum does not support process sets yet")
        return DistributedAdasumOptimizer(optimizer, compression, name, use_locking, backward_passes_per_step)
    reduction = Reduction(
        op, compression, sparse_as_dense, gradient_predivide_factor, process_set, scale_local_gradients
    )
    return DistributedOptimizerV1(
        optimizer, reduction, name, use_locking, backward_passes_per_step, average_aggregated_gradients
    )


#: Names that are made when they are asked for, so that a script with sessions need not import Keras; and their modules.
_LATER = {"SyncBatchNormalization": "sync_batch_norm"}
_MODULES = {name: name for name in ("elastic", "keras", "sync_batch_norm", "util")}
_MODULES |= {"compression": "optimizers.compression", "functions": "core.functions"}


if not TYPE_CHECKING:  # or every name would be taken for one of these

    def __getattr__(name: str) -> Any:
        if name in _LATER:
            return getattr(importlib.import_module(f"matex_tf.features.horovod.names.{_LATER[name]}"), name)
        if name in _MODULES:
            return importlib.import_module(f"matex_tf.features.horovod.names.{_MODULES[name]}")
        unsupported.raise_unsupported("horovod.tensorflow", name, [*globals(), *_LATER, *_MODULES])
