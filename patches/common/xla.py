"""What `jit_compile=True` compiles where a step exchanges: all that lies between the exchanges.

XLA cannot compile a step as a whole if gradients leave it. So its ops are marked one by one, and TensorFlow gathers
those that XLA can compile into clusters around those that it cannot: the exchange, loops, and what draws random numbers
(`patches/random/xla_draws.py` compiles those that have a seed). Shapes are known when a cluster runs; other shapes
compile anew, as in Keras' own XLA step. The rows of a batch are taken in front of the marked ops, or their numbers
would be constants of a cluster.

Grappler runs before the clusters are made. Its remapper turns a product, its bias and its activation into an op that
XLA does not know. Constants that it folds and arithmetic that it rewrites have no mark, and one of them between the
loss and its gradient cuts the cluster of both in two. So the step is called without all three, which XLA does itself.
A partitioned step (`patches.partition`) has XLA compile what follows its last exchange as a whole: that may overwrite
variables in their place, and a cluster may not.

Relies on (TensorFlow 2.16 to 2.21): `tf.xla.experimental.jit_scope`, public; ops of a graph within another have no mark
of their own; `function_call_options` and `config` of the context of tensorflow.python.eager.context, private.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from matex_tf.patches.common import log_once
from matex_tf.patches.common.active_flag import ActiveFlag
from matex_tf.state import notes

_LEFT_OUT = re.compile("PyFunc|PartitionedCall|Random|Multinomial|TruncatedNormal|StatefulUniform|StatefulStandard|Rng")
_LOOPS = {"While", "StatelessWhile"}
_compiling = ActiveFlag("compiling")


class _ByXla(notes.Inside):
    """Of a function: that XLA compiles its ops where it can."""


@contextlib.contextmanager
def compiled(wanted: bool = True) -> Iterator[None]:
    """Let XLA compile the ops that are traced inside of this block, where it can; eagerly this does nothing."""
    if not wanted or tf.executing_eagerly():
        yield
        return
    graph, before = tf.compat.v1.get_default_graph(), _loops()
    with _compiling(), tf.xla.experimental.jit_scope(compile_ops=_compiles):
        yield
    if tf.compat.v1.get_default_graph() is graph and _loops() > before:
        log_once.log("jit_compile: XLA compiles what lies around the loop of a recurrent layer, and not the loop.")


@contextlib.contextmanager
def called(wanted: bool = True) -> Iterator[None]:
    """Call a graph whose ops are marked inside of this block."""
    if not wanted:
        yield
        return
    module = importlib.import_module("tensorflow.python.eager.context")
    context = module.context()
    before = context.function_call_options
    config = _marks_kept(before.config_proto_serialized)
    context.function_call_options = module.FunctionCallOptions(before.executor_type, config)
    try:
        yield
    finally:
        context.function_call_options = before


@functools.lru_cache(maxsize=8)
def _marks_kept(serialized: bytes) -> Any:
    config = tf.compat.v1.ConfigProto.FromString(serialized)
    rewriting = config.graph_options.rewrite_options
    rewriting.remapping = rewriting.constant_folding = rewriting.arithmetic_optimization = 2  # off, which has no name
    return config


def active() -> bool:
    """Whether ops that are traced now are compiled by XLA, where it can."""
    return bool(_compiling) and not tf.executing_eagerly()


def function(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose ops XLA compiles where it can."""

    @functools.wraps(wrapped)
    def marked(*args: Any, **kwargs: Any) -> Any:
        with compiled():
            return wrapped(*args, **kwargs)

    notes.put(marked, _ByXla())  # decorators of TensorFlow take what is inside along, and so do bound methods
    return marked


def is_by_xla(function: Any) -> bool:
    """Whether a `tf.function` was made of such a function, so that calls of it are to be inside of `called`."""
    return notes.has(function.python_function, _ByXla)


def _compiles(node: Any) -> bool:
    return _LEFT_OUT.search(node.op) is None


def _loops() -> int:
    return sum(op.type in _LOOPS for op in tf.compat.v1.get_default_graph().get_operations())
