"""A large variable that nobody has read yet: it has no value, so that it is never whole on a rank.

Once ranks have it in parts, each makes its part of what the initializer gives (`drawn.py`). If the script reads or
changes it before that, the initializer is called for the whole of it, as without this module.

Relies on (Keras 3.3 to 3.15): `Layer.add_weight` and `Optimizer.add_variable_from_reference`, public, which make a
`tf.Variable` by a function that calls the initializer, and the name of the graph in which Keras asks for shapes;
(TensorFlow 2.13 to 2.21) `tf.variable_creator_scope`, public, and `resource_variable_ops.UninitializedVariable`,
private.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.common import wrapping
from matex_tf.patches.shards.drawn import Drawn
from matex_tf.patches.shards.serving import Parts
from matex_tf.state import notes, run_state

#: Bytes from which on a variable is large.
LARGE = 16 << 20
_WHAT = "see which variables have no value yet"


def install(module: ModuleType) -> None:
    """Patch keras.src.layers.layer."""
    wrapping.method(module, "Layer.add_weight", _add_weight)


def _add_weight(wrapped: Any, layer: Any, args: Any, kwargs: Any) -> Any:
    if args or settings.current().shard != "weights":
        return wrapped(*args, **kwargs)
    with making(kwargs.get("initializer"), kwargs.get("shape")):
        return wrapped(*args, **kwargs)


@contextlib.contextmanager
def making(initializer: Any, shape: Any) -> Iterator[None]:
    """A variable that Keras makes inside has no value, if it is large, and its initializer can be called later.

    Args: initializer: of it, or its name. shape: that it will have.
    """
    sizes = list(shape) if isinstance(shape, (tuple, list, tf.TensorShape)) else []
    is_large = len(sizes) > 1 and None not in sizes and 8 * math.prod(sizes) >= LARGE
    is_run = tf.executing_eagerly() or run_state.current().part(Parts).early
    if not is_large or not is_run or not _is_repeatable(initializer):
        yield
        return
    with tf.init_scope(), tf.variable_creator_scope(_make):
        yield


def _is_repeatable(initializer: Any) -> bool:
    """Whether an initializer, or its name, does nothing but give a value, the same each time."""
    if initializer is None or isinstance(initializer, str):
        return True  # those that Keras makes of a name have a number as their seed
    of_keras = type(initializer).__module__.startswith("keras.")
    return of_keras and isinstance(getattr(initializer, "seed", 0), int)


class Pending(notes.Inside):
    """What a variable without a value will have.

    Attributes:
        kind: its class once it has one.
        drawn: gives a rank its part.
    """

    def __init__(self, variable: Any, make: Callable[[], Any], drawn: Drawn):
        """Args: make: gives the whole value."""
        self._variable, self._make, self.drawn = variable, make, drawn
        kind: Any = type(variable)
        self.kind = kind
        notes.put(variable, self)
        variable.__class__ = class_with(_Pending, kind)

    def end(self) -> None:
        """The variable has a value from now on, or lies in parts."""
        self._variable.__class__ = self.kind
        notes.drop(self._variable, Pending)

    def whole(self) -> None:
        """Give the variable its whole value."""
        self.end()
        with tf.init_scope():
            self._variable.assign(self._make())


def _make(next_creator: Any, **kwargs: Any) -> Any:
    """A variable that Keras makes: without a value if it is large, and its value can be made in parts."""
    make: Any = kwargs.get("initial_value")
    try:
        with tf.init_scope():
            drawn = _drawn(make, kwargs.get("dtype")) if callable(make) else None
    except Exception:  # whatever it is, the initializer gives the whole value, or says what is wrong
        drawn = None
    if drawn is None:
        return next_creator(**kwargs)
    names = ("trainable", "name", "synchronization", "aggregation")
    given = {name: kwargs[name] for name in names if kwargs.get(name) is not None}
    variable = resource_variable_ops.UninitializedVariable(shape=drawn.shape, dtype=drawn.dtype, **given)
    Pending(variable, make, drawn)
    return variable


def _drawn(make: Callable[[], Any], dtype: Any) -> Drawn | None:
    drawn = Drawn(make)
    if len(drawn.shape) < 2 or math.prod(drawn.shape) * drawn.dtype.size < LARGE or not drawn.dtype.is_floating:
        return None
    return drawn if dtype is None or tf.as_dtype(dtype) == drawn.dtype else None


def of(variable: Any) -> Pending | None:
    """What a variable of TensorFlow or Keras will have; None if it has a value."""
    return notes.found(variable if isinstance(variable, tf.Variable) else getattr(variable, "_value", None), Pending)


def content(variable: Any) -> np.ndarray | None:
    """In place of the value of a variable of Keras that has none: what tells it from other ones."""
    pending = of(variable)
    return None if pending is None else np.frombuffer(pending.drawn.content, np.uint8)


def agree(variables: Sequence[Any]) -> None:
    """Have a value for those variables that have one on some rank. All ranks come here."""
    if settings.current().shard == "none":
        return
    mine = np.array([of(variable) is not None for variable in variables])
    everywhere = np.all(world.current().allgather(mine, _WHAT), axis=0)
    for variable, stays in zip(variables, everywhere, strict=True):
        if (pending := of(variable)) is not None and not stays:
            pending.whole()


class _Pending:
    """What a variable does differently while it has no value; before its own class in the order of resolution."""

    @property
    def _handle(self) -> Any:
        if tf.executing_eagerly() or not _is_only_shown():
            notes.of(self, Pending).whole()
        return self.__dict__["_handle"]

    @_handle.setter
    def _handle(self, handle: Any) -> None:
        self.__dict__["_handle"] = handle

    @property
    def device(self) -> str:
        """Where it will be: an optimizer puts its slots there."""
        return str(self.__dict__["_handle"].device)


def _is_only_shown() -> bool:
    """Whether Keras asks a layer for the shapes that it gives: what is traced then is never run."""
    return str(getattr(tf.compat.v1.get_default_graph(), "name", "")).startswith("scratch_graph")


@functools.cache
def class_with(before: type[Any], kind: type[Any]) -> Any:
    """A class of variables, `kind`, with another one `before` it in the order of resolution."""
    return type(kind.__name__, (before, kind), {})
