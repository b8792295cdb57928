"""Which public method of `tf.data.Dataset` has made a dataset, and with what.

TensorFlow has a private class for each kind of dataset. So a call leaves its name and its arguments at what it gives,
and the same can be done with another dataset. What has been made by other means has no name here: nobody knows then
what it does with elements. A dataset with a function says by its structure what that gives.

Relies on (TensorFlow 2.16 to 2.21): methods of `tf.data.Dataset`, public; and (private) `_map_func` of a dataset with
`output_structure`, `_datasets` of `zip`, and `_tensors` and `_step` of what holds tensors or counts.
"""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np

from matex_tf.patches.common import wrapping
from matex_tf.state import notes

#: Methods whose calls are kept; those of the second kind are given a function, which AutoGraph converts.
METHODS = (
    *("batch", "padded_batch", "take", "skip", "repeat", "shard", "prefetch", "with_options", "shuffle", "cache"),
    "enumerate",
)
OF_FUNCTIONS = ("filter",)


@dataclasses.dataclass(frozen=True)
class Call(notes.Inside):
    """A call of a method of `tf.data.Dataset`."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)

    def again(self, dataset: Any) -> Any:
        """Call the same method of another dataset."""
        return getattr(dataset, self.name)(*self.args, **self.kwargs)

    def first(self, name: str) -> Any:
        """The first argument. Args: name: that it has."""
        return self.args[0] if self.args else self.kwargs[name]


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    for name in METHODS:
        wrapping.method(module, f"data.Dataset.{name}", kept)
    for name in OF_FUNCTIONS:
        wrapping.wrap(module, f"data.Dataset.{name}", kept)


def kept(wrapped: Any, dataset: Any, args: Any, kwargs: Any) -> Any:
    """Call a method of a dataset, and keep the call at what it gives. A wrapper: see `wrapping.wrap`."""
    name = wrapped.__name__
    result = wrapped(*args, **kwargs)
    if name == "enumerate":  # a `zip` of two, the first of which TensorFlow has rewritten
        notes.put(result._inputs()[0], Call("range"))
    elif result is not dataset and not notes.has(result, Call):  # what it was made by itself says more
        now = {key: _as_it_is(value) for key, value in kwargs.items()}
        notes.put(result, Call(name, tuple(map(_as_it_is, args)), now))
    return result


def _as_it_is(value: Any) -> Any:
    """What an argument is now, if it may become something else."""
    import tensorflow as tf

    return tf.convert_to_tensor(value) if isinstance(value, (tf.Variable, np.ndarray)) else value


def of(dataset: Any) -> Call:
    """The call that made a dataset; with an empty name if nobody knows."""
    return notes.found(dataset, Call) or Call(_by_structure(dataset))


def kind(dataset: Any) -> str:
    """The name of the method that made a dataset; empty if nobody knows."""
    return of(dataset).name


def words(dataset: Any) -> str:
    """What a dataset is called in a message."""
    named = type(dataset).__name__.strip("_").removesuffix("Dataset").removeprefix("Parallel").lower()
    return kind(dataset) or named


def _by_structure(dataset: Any) -> str:
    import tensorflow as tf

    given = getattr(getattr(dataset, "_map_func", None), "output_structure", None)
    if isinstance(given, tf.data.DatasetSpec):
        return "flat_map"
    if given is not None:
        return "map" if given == dataset.element_spec else ""
    names = {"_datasets": "zip", "_tensors": "from_tensors", "_step": "range"}
    return next((name for attribute, name in names.items() if hasattr(dataset, attribute)), "")
