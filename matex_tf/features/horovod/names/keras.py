"""What `import horovod.keras as hvd` and `import horovod.tensorflow.keras as hvd` give, with Keras 3 or Keras 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from matex_tf.features.horovod.names import callbacks, elastic, util
from matex_tf.features.horovod.names.core import basics, functions, ops, unsupported
from matex_tf.features.horovod.names.core.basics import *  # noqa: F403
from matex_tf.features.horovod.names.core.basics import Adasum, Average, Sum
from matex_tf.features.horovod.names.core.functions import broadcast_global_variables
from matex_tf.features.horovod.names.core.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from matex_tf.features.horovod.names.optimizers import distributed, gradients
from matex_tf.features.horovod.names.optimizers.compression import Compression
from matex_tf.features.horovod.names.optimizers.which_keras import IS_2, keras
from matex_tf.features.horovod.names.sync_batch_norm import SyncBatchNormalization
from matex_tf.patches.common import keras_lines


def DistributedOptimizer(
    optimizer: Any, name: str | None = None, device_dense: str = "", device_sparse: str = "",
    compression: Any = Compression.none, sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0,
    op: int = Average, backward_passes_per_step: int = 1, average_aggregated_gradients: bool = False,
    num_groups: int = 0, groups: Any = None, process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:  # fmt: skip
    """A Keras optimizer of the same class that averages gradients over the ranks before it applies them.

    Args:
        optimizer: of Keras.
        name, device_dense, device_sparse, num_groups, groups: taken and ignored; gradients travel together.
        compression, sparse_as_dense, op, process_set, scale_local_gradients: see `gradients.Reduction`.
        gradient_predivide_factor: gradients are divided by it before the sum, and by size over it after the sum.
        backward_passes_per_step: gradients of so many batches are added up before they are reduced and applied.
        average_aggregated_gradients: whether these are then divided by that number.

    Raises:
        ValueError: op is neither Average nor Sum; or an option that cannot be.
    """
    if op == Adasum:
        raise ValueError(
            "op == Adasum is not supported with optimizers of Keras, nor was it by Horovod: in a training loop of your "
            "own give op=hvd.Adasum to hvd.DistributedGradientTape, or take an optimizer of tf.compat.v1.train."
        )
    if op not in (Average, Sum):
        raise ValueError("op currently only supports Average and Sum")
    gradients.check_options(gradient_predivide_factor, op, num_groups, groups)
    reduction = gradients.Reduction(
        op, compression, sparse_as_dense, gradient_predivide_factor, process_set, scale_local_gradients
    )
    return distributed.new_from(
        optimizer, _added(optimizer), reduction, backward_passes_per_step, average_aggregated_gradients
    )


def _added(optimizer: Any) -> type:
    """What the class of this optimizer gets on top, by the Keras that it is of."""
    if keras_lines.is_keras_2(optimizer):
        from matex_tf.features.horovod.names.optimizers import keras2

        return keras2.Added
    from matex_tf.features.horovod.names.optimizers import keras3

    return keras3.Added


def PartialDistributedOptimizer(
    optimizer: Any, name: str | None = None, device_dense: str = "", device_sparse: str = "",
    compression: Any = Compression.none, sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0,
    op: int = Average, backward_passes_per_step: int = 1, average_aggregated_gradients: bool = False,
    groups: Any = None, process_set: ProcessSet = global_process_set, local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:  # fmt: skip
    """A `DistributedOptimizer`; gradients of `local_layers` stay the rank's own.

    Args:
        local_layers: a built layer, or several; None for none.

    The others: see `DistributedOptimizer`.

    Raises:
        ValueError: an option that cannot be, or something else than layers.
    """
    local = gradients.variables_of(local_layers)
    made = DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
        backward_passes_per_step, average_aggregated_gradients, 0, groups, process_set, scale_local_gradients,
    )  # fmt: skip
    for variable in local:
        made.register_local_var(variable)
    return made


def allreduce(
    value: Any, name: str | None = None, average: bool | None = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, op: int | None = None, compression: Any = Compression.none,
) -> tf.Tensor:  # fmt: skip
    """A value reduced over the ranks.

    Args:
        value: a tensor, a variable or a number, of the same shape and dtype on every rank.
        name: by which ranks find one another; None is enough where all make the same calls in one order, or the same
            graph.
        average: older than `op`: True for Average, False for Sum.
        prescale_factor, postscale_factor: factors before and after.
        op: Average (the default), Sum, Adasum, Min, Max or Product.
        compression: of floating-point values on their way.
    """
    how = util.handle_average_backwards_compatibility(op, average)
    small, context = compression.compress(tf.convert_to_tensor(value))
    return compression.decompress(ops.allreduce([small], how, prescale_factor, postscale_factor, name)[0], context)


def allgather(value: Any, name: str | None = None) -> tf.Tensor:
    """The values of all ranks, joined along the first axis in the order of ranks.

    Args:
        value: (rows, …); how many rows may differ between ranks.
        name: by which ranks find one another; None is enough where all make the same calls in one order, or the same
            graph.
    """
    return ops.allgather([value], name)[0]


def broadcast(value: Any, root_rank: int, name: str | None = None) -> tf.Tensor:
    """`root_rank`'s value on every rank.

    Args:
        value: of the same shape and dtype on every rank.
        root_rank: whose value.
        name: by which ranks find one another; None is enough where all make the same calls in one order, or the same
            graph.
    """
    return ops.broadcast([value], root_rank, name)[0]


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> tf.Tensor:
    """This rank's rows of a value reduced over the ranks; the first ranks have one more if need be.

    Args:
        value: (rows, …), of the same shape and dtype on every rank.
        name: by which ranks find one another; None is enough where all make the same calls in one order, or the same
            graph.
        op: Average or Sum.
    """
    return ops.reducescatter([value], op, name=name)[0]


def load_model(
    filepath: Any, custom_optimizers: list[type] | None = None, custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none, legacy_opts: bool = False,
) -> Any:  # fmt: skip
    """A saved model whose optimizer, with the state that it was saved with, averages gradients over the ranks.

    Args:
        filepath: see `keras.models.load_model`.
        custom_optimizers: classes of optimizers that are not Keras' own.
        custom_objects: see `keras.models.load_model`.
        compression: of gradients.
        legacy_opts: must be False with Keras 3, which has no legacy optimizers.
    """
    if legacy_opts and not IS_2:
        raise ValueError("Keras 3 has no legacy optimizers: load the model without legacy_opts.")
    objects = {kind.__name__: kind for kind in custom_optimizers or []} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    if getattr(model, "optimizer", None) is not None:
        distributed.convert(model.optimizer, _added(model.optimizer), gradients.Reduction(compression=compression))
    return model


broadcast_variables: Callable[..., Any] = functions.broadcast_variables
broadcast_object: Callable[..., Any] = functions.broadcast_object
allgather_object: Callable[..., Any] = functions.allgather_object
join, barrier = ops.join, ops.barrier


if not TYPE_CHECKING:  # or every name would be taken for one of these

    def __getattr__(name: str) -> Any:
        unsupported.raise_unsupported("horovod.keras", name, [*globals(), *vars(basics)])
