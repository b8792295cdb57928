"""A compiled function of the script's own, traced as one rank traces it.

The script's Python sees one rank, and a batch as it is. TensorFlow keeps such traces apart from those that it makes
with the patches.

Relies on (TensorFlow 2.16 to 2.21, private): `function_context.make_function_context`, which gives a named tuple with
`context`; the names of the graphs of loops and branches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.core import graph_ops, world
from matex_tf.patches.common import under_way, wrapping

#: Graphs inside of which a batch is not taken once a step.
_MANY_TIMES = ("WhileBodyFuncGraph", "WhileCondFuncGraph", "CondBranchFuncGraph")


class NotOnce(Exception):
    """The function takes its batches in a way that its graph does not show."""


@dataclasses.dataclass
class Trace:
    """A trace that is made.

    Attributes:
        walks: whether the function walks over batches by itself, in loops or branches of its graph.
        gradients: whether it takes gradients by variables.
    """

    walks: bool = False
    gradients: bool = False


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    if wrapping.has_nothing_to_share():
        return
    contexts: Any = importlib.import_module("tensorflow.python.eager.polymorphic_function.function_context")
    original = wrapping.require(contexts, "make_function_context")

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        return made._replace(context=("as one rank", made.context)) if world.current().is_single else made

    contexts.make_function_context = make


@contextlib.contextmanager
def tracing() -> Iterator[Trace]:
    """What is traced inside a `with` block is traced as on one rank."""
    trace = Trace()
    with world.alone(), under_way.having(one_rank=trace):
        yield trace


def now() -> Trace | None:
    """The trace that is made now."""
    return under_way.now().one_rank


def walks() -> None:
    """The function that is traced takes batches by itself, more or less than once a step.

    Raises:
        NotOnce: always; AutoGraph makes another one of it.
    """
    trace = now()
    if trace is not None:
        trace.walks = True
        raise NotOnce("a loop over batches inside of a tf.function")


def takes_gradients(by_variables: bool) -> None:
    """The function that is traced takes gradients."""
    if (trace := now()) is not None:
        trace.gradients |= by_variables


def takes_batch() -> None:
    """The function that is traced takes a batch from an iterator.

    Raises:
        NotOnce: that is in a loop or branch.
    """
    if any(type(graph).__name__ in _MANY_TIMES for graph in graph_ops.within(tf.compat.v1.get_default_graph())):
        walks()
