"""The loss of a step of a script's own loop: that of the whole batch where a script returns, reads or prints it.

What a tape differentiates travels along with its gradients, weighted as they are, so it takes no message of its own.

- In a graph, the outputs of the function in which `tape.gradient` was called are made of the average: the target
  itself, the scalars that it is a sum or product of, and what is computed of these and of constants.
- The memory of an eager tensor gets the average, once its tape is done with it: whoever reads the tensor or computes
  with it finds that. A tensor on another device, or one that a persistent tape may still need, keeps the value of the
  rank's rows: there, reading it (`numpy`, `float`, `print`, f-strings) and Python's operators give the average.

Relies on (TensorFlow 2.16 to 2.21, private): `func_graph.func_graph_from_py_func(name, python_func, …)`, `_numpy` and
`__tf_tensor__` of `ops._EagerTensorBase`, through which eager tensors are read; the buffer of eager tensors, which is
their memory on the CPU; `GradientTape._persistent`; `Tensor.OVERLOADABLE_OPERATORS`, and
`tensorflow.python.eager.record.could_possibly_record`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import graph_ops
from matex_tf.exchange import tf_op
from matex_tf.patches.common import wrapping
from matex_tf.patches.keras import optimizer, sum_loss
from matex_tf.state import notes
from matex_tf.strategies.sync import ALONG, takes_along

_WHAT = "average the loss of a step"
_MOST = 32  # scalars that go along with the gradients of a tape

#: Ops that a loss is put together by, of scalars.
_SUMS = ("AddV2", "Add", "AddN", "Sub", "Neg", "Mul", "RealDiv", "Identity", "Cast", "StopGradient")
#: Ops by which outputs are computed of a loss, and those that have the same value on every rank.
_FOLLOWED = (*_SUMS, "Exp", "Log", "Sqrt", "Square", "Pow", "CheckNumerics")
_ALIKE = ("Const", "ReadVariableOp")


class _Known(dict[Any, Any], notes.Inside):
    """Of a graph, by reference: its scalars that are averaged, and their averages."""


@dataclasses.dataclass(frozen=True)
class _Whole(notes.Inside):
    """Of an eager tensor: what it is over the ranks."""

    tensor: Any


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    if wrapping.has_nothing_to_share():
        return
    func_graph = importlib.import_module("tensorflow.python.framework.func_graph")
    wrapping.wrap(func_graph, "func_graph_from_py_func", _trace)
    eager = wrapping.require(importlib.import_module("tensorflow.python.framework.ops"), "_EagerTensorBase")
    eager._numpy = _reading(wrapping.require(eager, "_numpy"))
    for name in ("__tf_tensor__", *sorted(wrapping.require(module, "Tensor.OVERLOADABLE_OPERATORS"))):
        setattr(eager, name, _computing(getattr(eager, name)))


def average_too(target: Any, tape: Any, gradients: Sequence[Any], labels: Sequence[str]) -> list[Any]:
    """Average gradients over the ranks, and along with them the scalars that a tape has differentiated.

    Args:
        target: as given to `tape.gradient`.
        tape: which no tape watches.
        gradients: with shapes that are known.
        labels: of the gradients.

    Returns:
        The averaged gradients.
    """
    scalars = _scalars(target)
    own = [sum_loss.whole(one) for one in scalars]
    names = [f"{ALONG}part {number} of the loss" for number in range(len(scalars))]
    if settings.current().codec == "none" and takes_along(optimizer.strategy()):
        averaged = optimizer.average_named([*gradients, *own], [*labels, *names])
        wholes = averaged[len(gradients) :]
    else:  # what changes gradients shall not change what is printed
        averaged = optimizer.average_named(gradients, labels)
        wholes = tf_op.sum_over_ranks(optimizer.weighted(own), _WHAT, names)
    for scalar, whole in zip(scalars, wholes, strict=True):
        if tf.executing_eagerly():
            if tape._persistent or not _written(scalar, whole):
                notes.put(scalar, _Whole(whole))
            else:
                sum_loss.now_whole(scalar)
        else:
            notes.of(scalar.graph, _Known)[scalar.ref()] = whole
    return averaged[: len(gradients)]


def _written(tensor: Any, value: Any) -> bool:
    """Write a value into the memory of an eager tensor, of the same shape and dtype; whether that was possible."""
    if not tensor.device.endswith("CPU:0"):
        return False
    new, memory = np.asarray(value), np.asarray(tensor)
    if memory.flags.owndata:
        return False
    ctypes.memmove(memory.ctypes.data, new.tobytes(), new.nbytes)
    return np.asarray(tensor).tobytes() == new.tobytes()


def recording() -> bool:
    """Whether a tape records what is computed now."""
    record = importlib.import_module("tensorflow.python.eager.record")
    return bool(wrapping.require(record, "could_possibly_record")())


def _scalars(target: Any) -> list[Any]:
    """The scalars of a target that are not known yet; in a graph also those that they are made of."""
    if not optimizer.strategy().averages_gradients:
        return []
    found = [one for one in tf.nest.flatten(target) if isinstance(one, tf.Tensor) and _is_scalar(one)]
    if tf.executing_eagerly():
        once = {id(one): one for one in found if not notes.has(one, _Whole)}
        return list(once.values())
    graph = tf.compat.v1.get_default_graph()
    found = [one for one in found if getattr(one, "graph", None) is graph]
    for one in found:  # it grows
        if one.op.type in _SUMS and len(found) < _MOST:
            found += [made for made in one.op.inputs if _is_scalar(made) and made.op.type not in _ALIKE]
    apart = {one.ref(): one for one in found[:_MOST]}
    return [one for reference, one in apart.items() if reference not in notes.of(graph, _Known)]


def _is_scalar(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating) and tensor.shape.rank == 0


def _trace(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Let the outputs of a graph be those of the whole batch, where that is known once the function has been run."""

    def traced(name: Any, python_func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        @functools.wraps(python_func)
        def function(*args: Any, **kwargs: Any) -> Any:
            outputs = python_func(*args, **kwargs)
            graph = tf.compat.v1.get_default_graph()
            return tf.nest.map_structure(_whole, outputs) if any(map(_is_known, graph_ops.within(graph))) else outputs

        return wrapped(name, function, *args, **kwargs)

    return traced(*args, **kwargs)


def _is_known(graph: Any) -> bool:
    return bool(notes.of(graph, _Known))


def _whole(tensor: Any) -> Any:
    """A tensor of a graph, computed of averages where all that it is computed of is known or alike on all ranks."""
    graph = getattr(tensor, "graph", None) if isinstance(tensor, tf.Tensor) and not _is_eager(tensor) else None
    if graph is None:
        return tensor
    known, operation = notes.of(graph, _Known), tensor.op
    if tensor.ref() in known or not _is_scalar(tensor):
        return known.get(tensor.ref(), tensor)
    for outside, inside in getattr(graph, "captures", ()):  # of a branch, or of the body of a loop
        if inside is tensor:
            return _whole(outside)
    if operation.type not in _FOLLOWED or graph is not tf.compat.v1.get_default_graph():
        return tensor
    made_of = [_whole(one) for one in operation.inputs]
    changed = [new is not old for new, old in zip(made_of, operation.inputs, strict=True)]
    if not any(changed) or not all(map(_settled, changed, made_of)):
        return tensor
    inputs = [tf.convert_to_tensor(one) for one in made_of]
    attributes = dict(operation.node_def.attr)
    again = graph.create_op(operation.type, inputs, [tensor.dtype], attrs=attributes, name="of_the_batch").outputs[0]
    known[tensor.ref()] = again
    return again


def _is_eager(tensor: Any) -> bool:
    return hasattr(tensor, "numpy")


def _settled(changed: bool, tensor: Any) -> bool:
    """Whether a tensor is known to have the value that it has on one rank."""
    if changed:
        return True
    operation = tensor.op
    while operation.type in ("Identity", "Cast"):
        operation = operation.inputs[0].op
    return operation.type in _ALIKE


def _reading(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def read(self: Any) -> Any:
        whole = notes.found(self, _Whole)
        return original(self if whole is None else whole.tensor)

    return read


def _computing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compute(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(_as_read(self), *map(_as_read, args), **kwargs)

    return tf.autograph.experimental.do_not_convert(compute)


def _as_read(value: Any) -> Any:
    """What an eager tensor shows; while a tape records, the tensor itself, which the tape may know."""
    whole = notes.found(value, _Whole) if isinstance(value, tf.Tensor) else None
    return value if whole is None or recording() else whole.tensor
