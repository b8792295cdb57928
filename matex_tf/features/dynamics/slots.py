"""What an optimizer keeps for each variable: moments, moving averages, accumulators.

Relies on (Keras 3.3 to 3.15, private): `Optimizer._trainable_variables`, `_trainable_variables_indices`, `_var_key`,
`_model_variables_moving_average`, `LossScaleOptimizer.inner_optimizer`; that slots are lists with an entry for each
variable, or dicts by its path or number; `_r` and `_c` of Adafactor, which lack an axis.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(frozen=True, eq=False)
class Slot:
    """A variable of an optimizer that belongs to one of the model's.

    Attributes:
        variable: of the optimizer.
        axes: for each axis of it, which axis of the model's variable that is.
        averages: whether it is a moving average of the model's variable, and so changes just as that does.
    """

    variable: Any
    axes: tuple[int, ...]
    averages: bool


def optimizers_of(model: Any) -> list[Any]:
    """The optimizers of a model, and those within them; each once."""
    from keras.src.optimizers.optimizer import Optimizer

    found: dict[int, Any] = {}
    waiting = [getattr(model, "optimizer", None), *vars(model).values()]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, Optimizer) and id(one) not in found:
            found[id(one)] = one
            waiting.append(getattr(one, "inner_optimizer", None))
    return list(found.values())


def slots_of(optimizer: Any, number: int) -> Iterator[Slot]:
    """What an optimizer keeps for one of its variables.

    Args:
        optimizer: of Keras, built.
        number: the variable's place among those that it trains.
    """
    variables = optimizer._trainable_variables
    of = variables[number]
    shape, seen = tuple(of.shape), set()
    averages = getattr(optimizer, "_model_variables_moving_average", None)
    for name, held in vars(optimizer).items():
        if held is variables or name in ("_variables", "_trainable_variables"):
            continue
        slot = None
        if isinstance(held, (list, tuple)) and len(held) == len(variables):
            slot = held[number]
        elif isinstance(held, dict):
            slot = held.get(getattr(of, "path", None), held.get(number))
        if slot is None or not hasattr(slot, "assign") or id(slot) in seen:
            continue
        axes = _axes(name, tuple(slot.shape), shape)
        if axes is not None:
            seen.add(id(slot))
            yield Slot(slot, axes, averages is not None and held is averages)


def _axes(name: str, shape: tuple[int, ...], of: tuple[int, ...]) -> tuple[int, ...] | None:
    """Which axes of a variable the axes of its slot are; None for what is not of its shape."""
    every = tuple(range(len(of)))
    if name == "_r" and len(of) >= 2:  # Adafactor (arXiv 1804.04235): means over rows and columns
        return every[:-1] if shape == of[:-1] else None
    if name == "_c" and len(of) >= 2:
        return (*every[:-2], every[-1]) if shape == (*of[:-2], of[-1]) else None
    return every if shape == of else None


def know_again(optimizer: Any) -> None:
    """Let an optimizer find its variables, after their values have become other TensorFlow variables."""
    known = optimizer._trainable_variables_indices
    if known:
        known.clear()
        known.update({optimizer._var_key(variable): i for i, variable in enumerate(optimizer._trainable_variables)})
