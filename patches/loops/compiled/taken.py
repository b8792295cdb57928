"""Batches that a compiled function takes from an iterator by itself: they come from outside when it runs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.patches.loops.compiled import one_rank_trace

#: Names by which a step takes gradients and uses them: those of TensorFlow, of optimizers and models of Keras.
_TRAINS = frozenset({"GradientTape", "gradient", "gradients", "minimize", "train_step"})


def taken_once(resource: Any, spec: Any) -> Any:
    """In the trace of one rank: a batch, which comes from outside when the step runs.

    Args:
        resource: of the iterator. spec: of a batch.

    Raises:
        NotOnce: not all leaves are tensors, or the step takes it in a loop or a branch. AutoGraph makes another one of
            it.
    """
    leaves = tf.nest.flatten(spec)
    if not all(type(leaf) is tf.TensorSpec for leaf in leaves):
        one_rank_trace.walks()
    one_rank_trace.takes_batch()
    taken = tf.raw_ops.IteratorGetNext(
        iterator=resource,
        output_types=[leaf.dtype for leaf in leaves],
        output_shapes=[leaf.shape for leaf in leaves],
    )
    return tf.nest.pack_sequence_as(spec, taken)


def reaches(function: Any, kind: type) -> bool:
    """Whether Python code may use an object of a kind, such as an iterator, which it knows by closure or by a global
    name.

    Args:
        function: of Python. kind: a class.
    """
    return any(isinstance(one, kind) for one in _reached(function))


def differentiates(function: Any) -> bool:
    """Whether Python code may take gradients and train with them, by the names that it speaks of. What goes on with a
    tape that was made outside, as `batch_jacobian` does, is part of a step, and may be traced once."""
    known = [*_reached(function)]
    if any(isinstance(one, tf.GradientTape) for one in known):
        return False
    return any(_TRAINS & {*code.co_names} for one in known for code in _codes(one))


def _reached(function: Any, most: int = 1000) -> Iterator[Any]:
    """What Python code knows by closure or by a global name. Args: most: how many objects are looked at."""
    seen: set[int] = set()
    stack = [function]
    while stack and len(seen) < most:
        one = stack.pop()
        if id(one) in seen or isinstance(one, (ModuleType, type, str, bytes, int, float, tf.Tensor, tf.Variable)):
            continue
        seen.add(id(one))
        yield one
        stack += _known_to(one)


def _codes(one: Any) -> list[CodeType]:
    """The code of a function, and of those that are written in it."""
    codes = [code for code in [getattr(one, "__code__", None)] if code is not None]
    for code in codes:  # it grows
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return codes


def _known_to(one: Any) -> list[Any]:
    """What an object of Python knows."""
    one = getattr(one, "python_function", one)
    owner = getattr(one, "__self__", None)
    found = [owner, getattr(one, "__wrapped__", None)]
    one = getattr(one, "__func__", one)
    if isinstance(one, functools.partial):
        found += [one.func, *one.args, *one.keywords.values()]
    if hasattr(one, "__code__"):
        names = sorted({name for code in _codes(one) for name in code.co_names})  # in one order on every rank
        known = [cell.cell_contents for cell in one.__closure__ or () if cell.cell_contents is not one]
        known += [one.__globals__[name] for name in names if name in one.__globals__]
        kinds = dict.fromkeys(kind for holder in [owner, *known] for kind in type(holder).__mro__)
        found += [*known, *(vars(kind)[name] for kind in kinds for name in names if name in vars(kind))]
    elif isinstance(one, dict):
        found += one.values()
    elif isinstance(one, (list, tuple)):
        found += one
    elif hasattr(one, "__dict__"):
        found += vars(one).values()
    return found
