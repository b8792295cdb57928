"""Which variables of a model lie in parts: those of its optimizers that have the shape of a weight and that the update
alone uses, and with `--shard weights` the weights of two axes and more.

Relies on (Keras 3.3 to 3.15): `Variable._value`, private, the variable of TensorFlow; `Optimizer.variables`, public.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.common import keras_lines
from matex_tf.patches.partition import shards
from matex_tf.patches.shards import pending
from matex_tf.patches.shards import variable as in_parts
from matex_tf.patches.shards.serving import Parts
from matex_tf.patches.shards.variable import Part
from matex_tf.state import run_state

#: Names in a line.
_NAMED = 5


def build(optimizer: Any, weights: Sequence[Any]) -> None:
    """Have an optimizer make its slots before a step, each in parts at once: they are never all whole.

    Keras has it do so in the first trace of the step, of which nothing is ever run: what `build` assigns to slots, such
    as the weights, is lost. So it is here.

    Args:
        weights: the variables that it shall update.
    """

    @tf.function(autograph=False)
    def trace() -> None:
        if not optimizer.built:  # TensorFlow traces it again where variables are made
            optimizer.build(weights)

    parts = run_state.current().part(Parts)
    parts.early = settings.current().shard != "none"
    try:
        with world.alone():
            trace.get_concrete_function()
    finally:
        parts.early = False


def made(slot: Any) -> None:
    """An optimizer has made a slot, the same on every rank."""
    is_there = tf.executing_eagerly() or pending.of(slot) is not None  # a trace gives others their values at its end
    if is_there and run_state.current().part(Parts).early and _is_large(_inner(slot)):
        with tf.init_scope():
            split_whole(slot)


def weights_to_split(chosen: Sequence[Any]) -> list[Any]:
    """Variables, of those that shall lie in parts, that have never done so."""
    return [one for one in chosen if _is_matrix(one) and in_parts.of(one) is None]


def split_whole(variable: Any) -> None:
    """Have a variable of Keras in parts that is whole, and the same on every rank."""
    Part(_inner(variable), keras_lines.path(variable)).split()


class Slots:
    """The optimizer's slots that a step of a model has in parts, and weights; see `shards.Slots`.

    Attributes:
        whole: names of large ones that stay whole.
    """

    def __init__(self, optimizers: Sequence[Any], weights: Sequence[Any], chosen: Sequence[Any] = ()):
        """Args: optimizers: of the model. weights: its trainable variables. chosen: those of its variables that lie in
        parts."""
        shapes, trained = {tuple(weight.shape) for weight in weights}, set(map(id, weights))
        held = {id(one): one for optimizer in optimizers for one in keras_lines.optimizer_variables(optimizer)}
        self._known = {
            id(inner.__dict__["_handle"]): (inner, keras_lines.path(one), tuple(one.shape) in shapes)
            for key, one in held.items()
            if key not in trained and _is_large(inner := _inner(one))
        }
        in_layers = {
            id(inner.__dict__["_handle"]): (inner, keras_lines.path(one), True)
            for one in chosen
            if _is_matrix(one) and (inner := _inner(one)) is not None
        }
        self._known.update(in_layers)
        self._weights = set(in_layers)
        self.whole: list[str] = []
        self._parts: list[tuple[Part, Any]] = []  # with the variable that held this rank's part

    def part_of(self, handle: Any, fits: bool, in_loop: bool) -> Any:
        """The handle of the variable that holds this rank's part; see `shards.Slots.part_of`."""
        inner, name, alike = self._known.get(id(handle), (None, "", False))
        if inner is None:
            return None
        if not (fits and alike) or (in_loop and id(handle) in self._weights):
            self.whole.append(name)
            return None
        part = in_parts.of(inner) or Part(inner, name)
        self._parts.append((part, part.own))
        return part.own.handle

    def line(self) -> str:
        """What to say of large variables that stay whole; empty for nothing."""
        if not self.whole:
            return ""
        more = f" and {len(self.whole) - _NAMED} more" if len(self.whole) > _NAMED else ""
        names = ", ".join(self.whole[:_NAMED]) + more
        return f"--shard: every rank holds {names} whole: not of a weight's shape, in a loop, or updated by other ops"

    def split(self) -> None:
        """Have them in parts, and the others whole, for a step that needs them so. All ranks come here."""
        if self.whole:
            self.join(set(self.whole))
        for part, _ in self._parts:
            part.split()

    def are_current(self) -> bool:
        """Whether its parts still lie where they lay when the step asked for them, and as the ranks need them now."""
        return all(part.own is own and part.is_current() for part, own in self._parts)

    def renew(self) -> None:
        """Have parts for the ranks that there are, if some have died since. All ranks come here."""
        for part, _ in self._parts:
            part.renew()

    def join(self, names: Container[str] | None = None) -> None:
        """Have them whole, or those of these names, for a step that reads them so. All ranks come here."""
        for inner, name, _ in self._known.values():
            part = in_parts.of(inner)
            if part is not None and (names is None or name in names):
                part.join()


def _is_matrix(weight: Any) -> bool:
    """Whether a variable of Keras that lies in parts is large enough, and no bias."""
    return len(weight.shape) > 1 and _is_large(_inner(weight))


def _inner(variable: Any) -> Any:
    """The variable of TensorFlow in one of Keras."""
    return getattr(variable, "_value", None)


def _is_large(inner: Any) -> bool:
    """Whether each rank would get a part of a variable of TensorFlow."""
    if not isinstance(inner, tf.Variable) or "_handle" not in inner.__dict__:
        return False
    size = inner.shape.num_elements()
    return inner.dtype.is_floating and (size or 0) >= shards.UNIT * world.of_job().size
