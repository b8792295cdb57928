"""The first step of a script's own loop that is shared out, held against one rank where it is a `tf.function`.

The loop gives the script a rank's rows of a batch. Where the script calls a compiled function with these very tensors,
rank 0 calls it with the whole ones first. The loop's first batch was whole on every rank, so the function has a graph
for such a batch already, and none of its Python is run again.

Relies on (TensorFlow 2.16 to 2.21): `tf.function`, `get_concrete_function` and `input_signature` of what it gives,
public; the class of that, `polymorphic_function.Function`, private.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.checking import effects, one_rank
from matex_tf.patches.common import wrapping
from matex_tf.patches.loops import position
from matex_tf.state import notes

#: Why a loop, or a step that takes batches by itself, is not compared in a tf.function: no batch to call one with.
INSIDE = "it runs inside of a tf.function; have it call one for each batch"


class _Calls:
    """Of a compiled function: the shapes of the whole batches that it was called with, and whether it was looked at."""

    def __init__(self) -> None:
        self.shapes: set[Any] = set()
        self.looked_at = False


class GivenBatch:
    """The batch that a loop has given to the script last.

    Args:
        loop: what has given it, for `position`.
        place: of the loop, in words.
        whole: the whole batch.
        own: the rank's rows of it; None where the script got the whole.
    """

    def __init__(self, loop: Any, place: str, whole: Any, own: Any = None):
        self.loop, self.place = loop, place
        self.whole = own is None
        self.pairs = {} if own is None else {id(a): (a, b) for a, b in _pairs(own, whole)}
        self.checked = False
        self._why_not = ""

    def not_compared(self, name: str, reason: str) -> None:
        """A function that the script has called with this batch is not compared with one rank.

        Args:
            name, reason: see `one_rank.why_not`; the first ones count.
        """
        self._why_not = self._why_not or one_rank.why_not(name, reason)

    def leave(self) -> str:
        """The script has done with this batch; returns why it was not compared with one rank, in words, or ""."""
        if self.pairs and not self.checked:
            self.not_compared("It", "no tf.function was called with the batch itself")
        return self._why_not


def _pairs(own: Any, whole: Any) -> list[tuple[Any, Any]]:
    return list(zip(tf.nest.flatten(own), tf.nest.flatten(whole), strict=True))


def install(module: ModuleType) -> None:
    """Patch tensorflow: calls of compiled functions."""
    if not wrapping.has_nothing_to_share():
        wrapping.function_calls(_around)


def _around(call: Any, function: Any, args: Any, kwargs: Any) -> Any:
    given = position.given_batch()
    if given is None or wrapping.is_aside() or not tf.executing_eagerly() or not position.active():
        return call(*args, **kwargs)
    return _call(call, function, args, kwargs, given)


def _call(run: Any, function: Any, args: Any, kwargs: Any, given: GivenBatch) -> Any:
    calls = notes.of(function, _Calls)
    if given.whole:
        calls.shapes.add(_shapes((args, kwargs)))
        return run(*args, **kwargs)
    takes = any(id(leaf) in given.pairs for leaf in tf.nest.flatten((args, kwargs)))
    if calls.looked_at or not takes:
        given.checked = given.checked or takes
        return run(*args, **kwargs)
    calls.looked_at = True
    check, reason = _begin(function, args, kwargs, given)
    if check is None:
        given.checked = True
        given.not_compared(_name(function, given), reason)
        return run(*args, **kwargs)
    with check.watching():
        result = run(*args, **kwargs)
    reason = check.tell()
    given.checked = reason != one_rank.NO_GRADIENTS
    if given.checked and reason:
        given.not_compared(check.name, reason)
    return result


def _begin(function: Any, args: Any, kwargs: Any, given: GivenBatch) -> tuple[one_rank.Check | None, str]:
    """Rank 0 takes the step alone. All ranks come here; else why the step cannot be held against one rank."""
    ranks = world.current()
    _, rows, total, taken, _ = before = position.read()
    reason, concrete = one_rank.aside(), None

    def of_all(leaf: Any) -> Any:
        return given.pairs[id(leaf)][1] if id(leaf) in given.pairs else leaf

    whole_args, whole_kwargs = tf.nest.map_structure(of_all, (args, kwargs))
    if not reason and any(_is_part(leaf, given, taken) for leaf in tf.nest.flatten((args, kwargs))):
        reason = "it is called with something that was computed of the batch"
    traced = (
        function.input_signature is not None or _shapes((whole_args, whole_kwargs)) in notes.of(function, _Calls).shapes
    )
    if not reason and not traced:
        reason = "it has not been traced for a whole batch"
    if not reason:
        concrete = function.get_concrete_function(*whole_args, **whole_kwargs)
        reason = effects.obstacle(concrete)
        if not reason and settings.current().check == "auto":
            size = sum(_bytes(whole) for _, whole in given.pairs.values())
            reason = one_rank.affordable([one for one in concrete.variables if one.trainable], size, total)
    everyone = ranks.allgather(reason, one_rank.WHAT)
    if reason := next((one for one in everyone if one), ""):
        return None, reason
    check = one_rank.Check(_name(function, given), rows / total)
    if ranks.rank == 0:
        position.enter(position.SPLIT, total, total, total, 0, given.loop)
        try:
            check.run_alone(lambda: function(*whole_args, **whole_kwargs), concrete)
        finally:
            position.enter(*before, given.loop)
    return check, ""


def _name(function: Any, given: GivenBatch) -> str:
    return f"{getattr(function.python_function, '__name__', 'a function')} in {given.place}"


def _is_part(leaf: Any, given: GivenBatch, taken: int) -> bool:
    """Whether an argument may have the rows of a rank, and is not what the loop has given."""
    if id(leaf) in given.pairs or not (tf.is_tensor(leaf) or isinstance(leaf, np.ndarray)):
        return False
    shape = leaf.shape
    return len(shape) > 0 and shape[0] == taken


def _bytes(leaf: Any) -> int:
    return int(leaf.shape.num_elements() or 0) * leaf.dtype.size if isinstance(leaf, tf.Tensor) else 0


def _shapes(arguments: Any) -> Any:
    """What TensorFlow tells traces apart by: shapes and types of tensors; all else is taken to be the same."""
    return tuple(
        (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, tf.Tensor) else type(leaf)
        for leaf in tf.nest.flatten(arguments, expand_composites=True)
    )
