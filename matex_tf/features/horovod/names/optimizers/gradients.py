"""Gradients of a step, reduced over ranks; and the tape that does it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from matex_tf.features.horovod.names.core import ops
from matex_tf.features.horovod.names.core.basics import Adasum, Average, Sum
from matex_tf.features.horovod.names.core.process_sets import ProcessSet, global_process_set
from matex_tf.features.horovod.names.optimizers.compression import Compression


@dataclasses.dataclass(frozen=True)
class Reduction:
    """How gradients become those of all ranks.

    Attributes:
        op: Average, Sum or Adasum.
        compression: see `Compression`.
        sparse_as_dense: whether `tf.IndexedSlices` are made dense before they travel.
        predivide: of an average, what the gradients are divided by before the sum; by size / predivide after it.
        process_set: the ranks that take part; on others gradients stay as they are.
        scale_local: whether gradients of local variables are divided by the number of ranks.
    """

    op: int = Average
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    predivide: float = 1.0
    process_set: ProcessSet = global_process_set
    scale_local: bool = True

    @ops.as_it_is
    def __call__(self, gradients: Sequence[Any], labels: Sequence[str], local: Sequence[bool]) -> list[Any]:
        """The gradients of all ranks, in the same order; Nones stay.

        Args:
            gradients: tensors, `tf.IndexedSlices` or None.
            labels: the variables' names, for messages.
            local: for each, whether its variable is the rank's own, and so not reduced.
        """
        result = list(gradients)
        if not self.process_set.included() or len(self.process_set.ranks) == 1:
            return result
        for place, gradient in enumerate(result):
            if isinstance(gradient, tf.IndexedSlices) and self.sparse_as_dense:
                result[place] = tf.convert_to_tensor(gradient)
        reduced = [place for place, grad in enumerate(result) if grad is not None and not local[place]]
        sums = grouped(
            [result[place] for place in reduced], self.op, self.compression,
            1.0 / self.predivide if self.op == Average else 1.0, self.predivide if self.op == Average else 1.0,
            None, self.process_set, [f"the gradient of {labels[place]}" for place in reduced],
        )  # fmt: skip
        for place, total in zip(reduced, sums, strict=True):
            result[place] = total
        for place, gradient in enumerate(result):
            if local[place] and self.scale_local and gradient is not None:
                result[place] = _divided(gradient, ops.count(self.process_set))
        return result


@ops.as_it_is
def grouped(
    tensors: Sequence[Any], op: int, compression: Any, prescale: float, postscale: float, name: str | None,
    among: ProcessSet, labels: Sequence[str] | None = None,
) -> list[Any]:  # fmt: skip
    """Reduce tensors and `tf.IndexedSlices` together; what is sparse is joined and not added up.

    Args:
        tensors: in the same order on every rank; dense ones of the same shapes and dtypes.
        op: see `ops.allreduce`; Average or Sum where one is sparse.
        compression: of the dense ones on their way.
        prescale, postscale: factors before and after; where one is sparse their product is 1.
        name: by which ranks find one another; None is enough where all make the same calls in one order, or the same
            graph.
        among: the ranks.
        labels: a name for each tensor, for messages; None: they are numbered.

    Raises:
        NotImplementedError: an op, or factors, with what is sparse.
    """
    result = list(tensors)
    sparse = [place for place, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    full = [place for place in range(len(tensors)) if place not in set(sparse)]
    if sparse and op not in (Average, Sum):
        kind = "The Adasum reduction does" if op == Adasum else "Ops other than Sum and Average do"
        raise NotImplementedError(
            f"{kind} not currently support sparse tensors. As a workaround please pass sparse_as_dense=True."
        )
    if sparse and not math.isclose(prescale * postscale, 1.0):
        raise NotImplementedError("Pre/postscale_factor are not supported with tf.IndexedSlices")
    if full:
        pairs = [compression.compress(tf.convert_to_tensor(tensors[place])) for place in full]
        some = [labels[place] for place in full] if labels else None
        sums = ops.allreduce([small for small, _ in pairs], op, prescale, postscale, name, among, some)
        for place, total, (_, context) in zip(full, sums, pairs, strict=True):
            result[place] = compression.decompress(total, context)
    if sparse:
        parts = [part for place in sparse for part in (tensors[place].values, tensors[place].indices)]
        joined = ops.allgather(parts, f"{name}_sparse" if name else None, among)
        for number, place in enumerate(sparse):
            values, indices = joined[2 * number], joined[2 * number + 1]
            if op == Average:
                values = _divided(values, ops.count(among))
            result[place] = tf.IndexedSlices(values, indices, tensors[place].dense_shape)
    return result


def _divided(gradient: Any, size: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / tf.cast(size, gradient.dtype), gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(size, gradient.dtype)


def check_options(predivide: float, op: int, num_groups: int, groups: Any) -> None:
    """Refuse what `DistributedOptimizer` and its kin cannot do. Args: see `DistributedGradientTape`.

    Raises:
        ValueError: what they cannot do.
    """
    if predivide != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    groups = num_groups or None if groups is None else groups
    if groups is not None and not (isinstance(groups, list) or groups > 0):
        raise ValueError("groups should be a non-negative integer or a list of list of tf.Variable.")


def variable_name(variable: Any) -> str:
    """A variable's name, for messages."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", "a tensor"))


def variables_of(local_layers: Any) -> list[Any]:
    """The trainable variables of a layer, or of several.

    Raises:
        ValueError: something else is among them.
    """
    from matex_tf.features.horovod.names.optimizers.which_keras import keras

    layers = [] if local_layers is None else local_layers
    layers = [layers] if isinstance(layers, keras.layers.Layer) else list(layers)
    if not all(isinstance(layer, keras.layers.Layer) for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return [variable for layer in layers for variable in layer.trainable_weights]


class _DistributedTape:
    """What a tape gets on top of its own class."""

    _reduction: Reduction
    _local: set[int]

    def register_local_source(self, source: Any) -> None:
        """Leave the gradient of this variable to the rank."""
        self._local.add(_identity(source))

    @ops.as_it_is
    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False, **more: Any
    ) -> Any:
        """The gradients, as the tape has them, reduced over the ranks."""
        own = super().gradient(target, sources, output_gradients, **more)  # type: ignore[misc]
        variables = tf.nest.flatten(sources)
        flat = tf.nest.flatten(own) if isinstance(sources, (list, tuple, dict)) else [own]
        local = [_identity(variable) in self._local for variable in variables]
        reduced = self._reduction(flat, [variable_name(variable) for variable in variables], local)
        return tf.nest.pack_sequence_as(sources, reduced) if isinstance(sources, (list, tuple, dict)) else reduced[0]

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[Any], list[Any]]:
        """Pairs of variable and gradient: those of local variables, and the others."""
        pairs = list(zip(sources, self.gradient(target, sources, output_gradients), strict=True))
        return (
            [pair for pair in pairs if _identity(pair[0]) in self._local],
            [pair for pair in pairs if _identity(pair[0]) not in self._local],
        )


def _identity(variable: Any) -> int:
    return id(variable if isinstance(variable, tf.Variable) else getattr(variable, "_value", variable))


def DistributedGradientTape(
    gradtape: tf.GradientTape, device_dense: str = "", device_sparse: str = "", compression: Any = Compression.none,
    sparse_as_dense: bool = False, op: int = Average, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
    groups: Any = None, process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True,
) -> Any:  # fmt: skip
    """A tape whose `gradient` gives gradients reduced over the ranks.

    Args:
        gradtape: a tape, recorded or not.
        device_dense, device_sparse: taken and ignored; with Horovod the devices on which tensors are reduced.
        compression, sparse_as_dense, op, process_set: see `Reduction`.
        gradient_predivide_factor: `predivide` of `Reduction`; 1 unless op is Average.
        num_groups, groups: taken and ignored, as gradients travel together; with Horovod which of them are reduced at
            once: a number of groups, or lists of variables.
        scale_local_gradients: `scale_local` of `Reduction`.

    Raises:
        ValueError: options that do not go together.
    """
    check_options(gradient_predivide_factor, op, num_groups, groups)
    kind = type(gradtape.__class__.__name__, (_DistributedTape, gradtape.__class__), {})
    tape: Any = object.__new__(kind)
    tape.__dict__.update(gradtape.__dict__)
    tape._reduction = Reduction(
        op, compression, sparse_as_dense, gradient_predivide_factor, process_set, scale_local_gradients
    )
    tape._local = set()
    return tape


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape, device_dense: str = "", device_sparse: str = "", compression: Any = Compression.none,
    sparse_as_dense: bool = False, op: int = Average, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
    groups: Any = None, process_set: ProcessSet = global_process_set, local_layers: Iterable[Any] | None = None,
    scale_local_gradients: bool = True,
) -> Any:  # fmt: skip
    """A `DistributedGradientTape`; the gradients of `local_layers` stay the rank's own.

    Args:
        local_layers: a built layer, or several; None for none.

    The others: see `DistributedGradientTape`.

    Raises:
        ValueError: options that do not go together, or something else than layers.
    """
    tape = DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, num_groups,
        groups, process_set, scale_local_gradients,
    )  # fmt: skip
    for variable in variables_of(local_layers):
        tape.register_local_source(variable)
    return tape
