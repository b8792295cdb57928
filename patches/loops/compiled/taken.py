"""Batches that a compiled function takes from an iterator by itself: they come from outside when it runs."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.patches.loops.compiled import one_rank_trace


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


def reaches(function: Any, kind: type, most: int = 1000) -> bool:
    """Whether Python code may use an object of a kind, such as an iterator, which it knows by closure or by a global
    name.

    Args:
        function: of Python. kind: a class. most: how many objects are looked at.
    """
    seen: set[int] = set()
    stack = [function]
    while stack and len(seen) < most:
        one = stack.pop()
        if id(one) in seen or isinstance(one, (ModuleType, type, str, bytes, int, float, tf.Tensor, tf.Variable)):
            continue
        seen.add(id(one))
        if isinstance(one, kind):
            return True
        stack += _known_to(one)
    return False


def _known_to(one: Any) -> list[Any]:
    """What an object of Python knows."""
    one = getattr(one, "python_function", one)
    found = [getattr(one, "__self__", None), getattr(one, "__wrapped__", None)]
    one = getattr(one, "__func__", one)
    if isinstance(one, functools.partial):
        found += [one.func, *one.args, *one.keywords.values()]
    if hasattr(one, "__code__"):
        found += [cell.cell_contents for cell in one.__closure__ or () if cell.cell_contents is not one]
        codes = [one.__code__]
        for code in codes:  # it grows
            codes += [inner for inner in code.co_consts if hasattr(inner, "co_names")]
            found += [one.__globals__[name] for name in code.co_names if name in one.__globals__]
    elif isinstance(one, dict):
        found += one.values()
    elif isinstance(one, (list, tuple)):
        found += one
    elif hasattr(one, "__dict__"):
        found += vars(one).values()
    return found
