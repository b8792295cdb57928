"""Compiled functions of the script's own that get a batch which every rank has whole: partitioned.

A loop gives whole batches to its first steps; see `shared_loop`. A function that is called with one, or takes it from
an iterator by itself, is traced as one rank traces it and rebuilt for the rank's rows (`patches.partition`). What it
gives is whole, and so is the state that it leaves: all that the loop does besides is done by every rank, as on one.

Relies on (TensorFlow 2.16 to 2.21, private): `polymorphic_function.Function`, its `__call__`, `_function_type`,
`_default_values`, `_is_pure`, `_created_variables` and `_variable_creation_config`;
`function_type_utils.canonicalize_function_inputs`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.checking import partitioner
from matex_tf.patches.common import sharing_report, wrapping, xla
from matex_tf.patches.loops import (
    iteration,
    position,
    shared_loop,
    step_loss,
)
from matex_tf.patches.loops.compiled import one_rank_trace, taken
from matex_tf.patches.loops.compiled.traced import Traced
from matex_tf.state import notes


def install(module: ModuleType) -> None:
    """Patch tensorflow: calls of compiled functions."""
    if not wrapping.has_nothing_to_share():
        wrapping.function_calls(_around)


def _around(call: Any, function: Any, args: Any, kwargs: Any) -> Any:
    if not xla.is_by_xla(function):
        return _called(call, function, args, kwargs)
    with xla.called():
        return _called(call, function, args, kwargs)


def _called(call: Any, function: Any, args: Any, kwargs: Any) -> Any:
    if not tf.executing_eagerly() or not position.active() or not _applies() or step_loss.recording():
        return call(*args, **kwargs)
    loops = shared_loop.with_whole_batches()
    if loops is None:
        return call(*args, **kwargs)
    return notes.of(function, CompiledStep, lambda: CompiledStep(function))(call, loops, args, kwargs)


def _applies() -> bool:
    """Whether compiled steps of this job are partitioned; the same on every rank."""
    chosen = settings.current()
    return chosen.codec == "none" and chosen.shares_loops and not wrapping.is_aside() and partitioner.is_on()


class CompiledStep:
    """A compiled function of the script's, called with whole batches."""

    def __init__(self, function: Any):
        self._function: Callable[[], Any] = weakref.ref(function)
        self._name = getattr(function.python_function, "__name__", "a function")
        self._aside = bool(function._jit_compile)  # of somebody else's making, without exchanges
        self._takes: bool | None = None  # whether it may take a batch by itself; None if nobody has looked
        self._gets: bool | None = None  # whether it may get one from a script that makes it; None likewise
        self._xla = xla.compiled if xla.is_by_xla(function) else None
        self._traced: dict[Any, Traced] = {}
        self._differentiates: set[Any] = set()  # traces in which gradients by variables are taken

    def __call__(self, run: Any, loops: Sequence[Any], args: Any, kwargs: Any) -> Any:
        """Call it.

        Args:
            run: what calls it with the patches.
            loops: the script is in, which give whole batches.
        """
        if self._aside:
            return run(*args, **kwargs)
        given = [leaf for leaf in tf.nest.flatten((args, kwargs)) if isinstance(leaf, iteration.SharedIterator)]
        if any(one.is_own for one in given):
            return run(*args, **kwargs)
        from_loop = bool(loops or given or iteration.in_use() and self._may_take())
        growth = world.of_job().growth
        calls = None if growth is None else growth.loops()
        if not from_loop and not self._may_get() and (calls is None or self._speaks_of_ranks):
            return run(*args, **kwargs)
        trusted = contextlib.nullcontext if calls is None else calls.trusted
        with trusted():
            args, kwargs = self._canonical(args, kwargs)
        traced = self._traced_for(args, kwargs)
        with trusted():
            if traced is not None:
                flat = traced.inputs(args, kwargs)
                is_apart = traced.is_apart(flat)
                rows = 0 if from_loop or is_apart else traced.rows_of_all(flat)
                is_alike = calls is not None and traced.may_be_alike and not self._speaks_of_ranks
                if (loops or traced.takes or rows or is_alike) and not is_apart:
                    return traced(flat, loops, calls, rows)
                self._aside |= is_apart and bool(loops or traced.takes)
        return run(*args, **kwargs)

    def _traced_for(self, args: Any, kwargs: Any) -> Traced | None:
        """The trace for such arguments; None without one, from then on."""
        concrete = self._trace(args, kwargs)
        if concrete is None:
            self._aside = True
            return None
        if concrete not in self._traced:
            differentiates = concrete in self._differentiates
            self._traced[concrete] = Traced(concrete, self._name, self._xla, differentiates)
        return self._traced[concrete]

    def _may_take(self) -> bool:
        if self._takes is None:
            self._takes = taken.reaches(self._function().python_function, iteration.SharedIterator)
        return self._takes

    def _may_get(self) -> bool:
        """Whether it may train on a batch that the script has made."""
        if self._gets is None:
            self._gets = not self._speaks_of_ranks and taken.differentiates(self._function().python_function)
        return self._gets

    @functools.cached_property
    def _speaks_of_ranks(self) -> bool:
        return sharing_report.speaks_of_ranks()

    def _canonical(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        utils = importlib.import_module("tensorflow.python.eager.polymorphic_function.function_type_utils")
        function = self._function()
        bound = utils.canonicalize_function_inputs(
            args, kwargs, function._function_type, function._default_values, function._is_pure
        )
        return bound.args, bound.kwargs

    def _trace(self, args: Any, kwargs: Any) -> Any:
        """The function as one rank traces it; None if its graph does not show the batches that it works on."""
        function = self._function()
        untraced = function._variable_creation_config is None
        with one_rank_trace.tracing() as trace:
            try:
                concrete = function.get_concrete_function(*args, **kwargs)
                self._differentiates |= {concrete} if trace.gradients else set()
                return concrete
            except Exception:
                if not trace.walks:
                    raise
                if untraced:  # its first trace is still to come, which may create variables
                    function._created_variables = function._variable_creation_config = None
                return None
