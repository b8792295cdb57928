"""A change of a model's widths, carried out: variables, what optimizers keep, sizes, shapes, compiled functions.

Relies on (Keras 3.3 to 3.15, private): `KerasTensor._shape`, `InputLayer._batch_shape`, `Layer._build_shapes_dict`,
`Model.train_function` and its like.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf.features.dynamics import slots
from matex_tf.features.dynamics.channels import resized
from matex_tf.features.dynamics.channels.analysis import READS, Analysis, Part
from matex_tf.features.dynamics.channels.flow import Flow

#: From the channels along an axis to the places that stay, in their new order; a place may be taken twice.
Places = Callable[[np.ndarray], np.ndarray]


class Edit:
    """What happens to the values along one axis of a variable: places stay, go, or are taken twice."""

    def __init__(self, part: Part, take: np.ndarray):
        """Args: take: (new size,) int64, the old place of each new one."""
        self.part, self.take = part, take

    def value(self, array: np.ndarray) -> np.ndarray:
        """The variable's new value, or that of a moving average of it; alike however often it is called."""
        return array.take(self.take, self.part.axis)

    def slot(self, array: np.ndarray, axis: int) -> np.ndarray:
        """What an optimizer has kept for the variable, along with its places.

        Args:
            array: a slot, which may lack axes of the variable.
            axis: of the array, the one that is edited.
        """
        return array.take(self.take, axis)


def carry_out(model: Any, analysis: Analysis, edits: Sequence[Edit], places: Places) -> None:
    """Change a model, and all that goes with it.

    Args:
        model: what it computes is compiled anew at its next step.
        analysis: of the model as it is.
        edits: of every part that changes.
        places: where the channels along an axis of a tensor, or those that a size counts, go.
    """
    by_variable: dict[int, list[Edit]] = {}
    for edit in sorted(edits, key=lambda one: one.part.role == READS):  # what reads is split after it was copied
        by_variable.setdefault(id(edit.part.variable), []).append(edit)
    optimizers = [one for one in slots.optimizers_of(model) if one.built]
    numbers = [{id(one): i for i, one in enumerate(optimizer._trainable_variables)} for optimizer in optimizers]
    for own in by_variable.values():
        variable = own[0].part.variable
        kept = [
            slot
            for optimizer, known in zip(optimizers, numbers, strict=True)
            if id(variable) in known
            for slot in slots.slots_of(optimizer, known[id(variable)])
        ]
        value = np.asarray(variable)
        for edit in own:
            value = edit.value(value)
        resized.put(variable, value)
        for slot in kept:
            _change_slot(slot, own)
    for optimizer in optimizers:
        slots.know_again(optimizer)
    for size in analysis.sizes:
        count = len(places(size.channels))
        if count != len(size.channels):
            size.put(count)
    _reshape_tensors(analysis, places)
    compile_anew(model)


def _change_slot(slot: slots.Slot, edits: Sequence[Edit]) -> None:
    value = np.asarray(slot.variable)
    for edit in edits:
        if edit.part.axis in slot.axes:
            axis = slot.axes.index(edit.part.axis)
            value = edit.value(value) if slot.averages else edit.slot(value, axis)
    resized.put(slot.variable, value)


def _reshape_tensors(analysis: Analysis, places: Places) -> None:
    """Shapes that a functional model, its input layers and its layers keep."""
    for tensor, flow in analysis.tensors:
        shape = _shape_after(flow, places)
        if shape != tuple(tensor.shape):
            setattr(tensor, "_shape" if hasattr(tensor, "_shape") else "shape", shape)
            layer = tensor._keras_history.operation
            if type(layer).__name__ == "InputLayer":
                setattr(layer, "_batch_shape" if hasattr(layer, "_batch_shape") else "batch_shape", shape)
    for layer, call in analysis.calls:
        built = getattr(layer, "_build_shapes_dict", None)
        if not built:
            continue
        for name, before in built.items():
            if not isinstance(before, (list, tuple)):
                continue
            several = bool(before) and isinstance(before[0], (list, tuple))
            if several and len(before) == len(call.flows):
                built[name] = [_shape_after(one, places, analysis) for one in call.flows]
            came = _input_named(call, name, alone=len(built) == 1)
            if came is not None and not several and len(came.shape) == len(before):
                built[name] = _shape_after(came, places, analysis)


def _input_named(call: Any, name: str, alone: bool) -> Flow | None:
    """What came in where a layer was built for `query_shape` and its like."""
    places = {"query_shape": 0, "value_shape": 1, "key_shape": 2}
    given = call.argument(places[name], name.removesuffix("_shape")) if name in places else None
    if isinstance(given, Flow):
        return given
    return call.flows[0] if alone and call.flows else None


def _shape_after(flow: Flow, places: Places, analysis: Analysis | None = None) -> tuple[int | None, ...]:
    if flow.channels is None:
        return tuple(flow.shape)
    channels = flow.channels if analysis is None else analysis.roots(flow.channels)
    count = len(places(channels))
    return tuple(count if axis == flow.axis else size for axis, size in enumerate(flow.shape))


def compile_anew(model: Any) -> None:
    """Forget what was compiled for the old shapes; also while `fit` runs."""
    for kind in ("train", "test", "predict"):
        function = getattr(model, f"{kind}_function", None)
        if function is None:
            continue
        if hasattr(function, "compile_anew"):
            function.compile_anew()
        else:
            setattr(model, f"{kind}_function", None)
            getattr(model, f"make_{kind}_function")(force=True)
