"""A rank that comes has not the values of variables that steps have changed: whoever reads one meanwhile is seen.

By the object of the variable, whose handle Python and TensorFlow's C code ask for; and by ops that get the handle, such
as calls of compiled functions, which hold it by themselves.

Relies on (TensorFlow 2.16 to 2.21, private): `_handle` of `resource_variable_ops.BaseResourceVariable`;
`framework.op_callbacks.add_op_callback` and `remove_op_callback`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

_NAME = "_handle"


class SideReads:
    """What sees them."""

    def __init__(self, tell: Callable[[str], None]):
        """Args: tell: called with the name of a variable that is read or changed."""
        self._tell, self._watched = tell, dict[int, tuple[weakref.ref[Any], str]]()
        self._trusted = 0
        self._variables: Any = importlib.import_module("tensorflow.python.ops.resource_variable_ops")
        self._callbacks: Any = importlib.import_module("tensorflow.python.framework.op_callbacks")
        self._on = False

    def watch(self, handles: Iterable[tuple[Any, str]]) -> None:
        """See whoever reads these variables. Args: handles: each with the name of its variable."""
        new = {id(handle): (weakref.ref(handle), name) for handle, name in handles if not self._name(handle)}
        self._watched |= new
        if not self._on:
            self._on = True
            self._variables.BaseResourceVariable._handle = property(self._get, _set)
            self._callbacks.add_op_callback(self._executed)
        for dataset in gc.get_objects() if new else ():  # which runs functions by itself
            if issubclass(type(dataset), tf.data.Dataset):
                for function in dataset._functions():
                    self._tell_of(function.function.captured_inputs)

    def end(self) -> None:
        """See nothing any more."""
        if self._on:
            self._on = False
            del self._variables.BaseResourceVariable._handle
            self._callbacks.remove_op_callback(self._executed)

    @contextlib.contextmanager
    def trusted(self) -> Iterator[None]:
        """What reads variables inside a `with` block depends on no value of theirs."""
        self._trusted += 1
        try:
            yield
        finally:
            self._trusted -= 1

    def _get(self, variable: Any) -> Any:
        try:
            handle = variable.__dict__[_NAME]
        except KeyError:
            raise AttributeError(_NAME) from None
        if id(handle) in self._watched and tf.executing_eagerly():
            self._see([handle])
        return handle

    def _name(self, handle: Any) -> str:
        """The name of the variable that a handle is of; empty where it is not watched."""
        held, name = self._watched.get(id(handle), (None, ""))
        return name if held is not None and held() is handle else ""

    def _executed(
        self, op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        if graph is None:
            self._see(inputs)

    def _see(self, inputs: Any) -> None:
        if not self._trusted:
            self._tell_of(inputs)

    def _tell_of(self, inputs: Any) -> None:
        for one in inputs:
            if name := self._name(one):
                self._tell(name)


def _set(variable: Any, handle: Any) -> None:
    variable.__dict__[_NAME] = handle
