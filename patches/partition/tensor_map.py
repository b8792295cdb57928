"""Tensors of a graph as keys: they have no hash of their own, and `==` makes an op of them."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, TypeVar

_Value = TypeVar("_Value")


class TensorMap(MutableMapping[Any, _Value]):
    """A value for each tensor, in the order in which they were added."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Any, _Value]] = {}

    def __getitem__(self, tensor: Any) -> _Value:
        return self._of[id(tensor)][1]

    def get(self, tensor: Any, default: Any = None) -> Any:
        """The value of a `tensor`, or the `default`."""
        found = self._of.get(id(tensor))
        return default if found is None else found[1]

    def __setitem__(self, tensor: Any, value: _Value) -> None:
        self._of[id(tensor)] = tensor, value

    def __delitem__(self, tensor: Any) -> None:
        del self._of[id(tensor)]

    def __contains__(self, tensor: Any) -> bool:
        return id(tensor) in self._of

    def __iter__(self) -> Iterator[Any]:
        return (tensor for tensor, _ in self._of.values())

    def __len__(self) -> int:
        return len(self._of)
