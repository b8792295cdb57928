"""What a script reads between steps of variables that these change, on the ranks of a job and on one that comes.

The ranks of a job note what `value`, `numpy` and the like give, and a rank that comes, which has not these values,
takes it from them. There every other way to a variable is seen, and refused: by the object of the variable, whose
handle Python and TensorFlow's C code ask for; and by ops that get the handle, such as calls of compiled functions,
which hold it by themselves. It may assign values, which those of the job replace later.

Relies on (TensorFlow 2.16 to 2.21, private): `_handle`, `_read_variable_op`, `assign`, `assign_add` and `assign_sub`
of `resource_variable_ops.BaseResourceVariable`; `framework.op_callbacks.add_op_callback` and `remove_op_callback`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import tensorflow as tf

_HANDLE, _READ = "_handle", "_read_variable_op"
_ASSIGNS = "assign", "assign_add", "assign_sub"


class SideReads:
    """What sees them."""

    def __init__(self, read: Callable[[Callable[[], Any]], Any], tell: Callable[[str], None]):
        """Args:
        read: gets what reads a variable, and gives its value.
        tell: called with the name of a variable to which there was another way; see `watch`.
        """
        self._give, self._tell = read, tell
        self._watched = dict[int, tuple[weakref.ref[Any], str]]()
        self._trusted = 0
        self._variables: Any = importlib.import_module("tensorflow.python.ops.resource_variable_ops")
        self._callbacks: Any = importlib.import_module("tensorflow.python.framework.op_callbacks")
        self._originals: dict[tuple[str, type], Any] = {}
        self._strict = False

    def watch(self, handles: Iterable[tuple[Any, str]], strict: bool) -> None:
        """See who reads these variables.

        Args:
            handles: each with the name of its variable.
            strict: whether every other way to them is told of too; then the script may assign values.
        """
        new = {id(handle): (weakref.ref(handle), name) for handle, name in handles if not self._name(handle)}
        self._watched |= new
        if new and not self._originals:
            self._wrap(_READ, self._read)
        if strict and not self._strict:
            self._strict = True
            for name in _ASSIGNS:
                self._wrap(name, self._assign)
            self._variables.BaseResourceVariable._handle = property(self._get, _set)
            self._callbacks.add_op_callback(self._executed)
        for dataset in gc.get_objects() if new and strict else ():  # which runs functions by itself
            if issubclass(type(dataset), tf.data.Dataset):
                for function in dataset._functions():
                    self._tell_of(function.function.captured_inputs)

    def relax(self) -> None:
        """Tell of no other ways any more."""
        if self._strict:
            self._strict = False
            for name, cls in [one for one in self._originals if one[0] in _ASSIGNS]:
                setattr(cls, name, self._originals.pop((name, cls)))
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

    def _wrap(self, name: str, around: Callable[..., Any]) -> None:
        """Have a method of all classes of variables called by another one, which gets it first."""
        pending = [self._variables.BaseResourceVariable]
        while pending:
            cls = pending.pop()
            pending += cls.__subclasses__()
            if name in vars(cls):
                original = self._originals[name, cls] = vars(cls)[name]
                setattr(cls, name, tf.autograph.experimental.do_not_convert(_around(original, around)))

    def _read(self, original: Callable[..., Any], variable: Any, *args: Any, **kwargs: Any) -> Any:
        compute = functools.partial(original, variable, *args, **kwargs)
        in_order = tf.executing_eagerly() and threading.current_thread() is threading.main_thread()
        if self._trusted or not in_order or not self._name(vars(variable).get(_HANDLE)):
            return compute()
        if not _is_for_us():
            return self._give(compute)
        with self.trusted():  # what this package reads is not the same on every rank, and not the script's
            return compute()

    def _assign(self, original: Callable[..., Any], variable: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        value = tf.convert_to_tensor(value, variable.dtype)  # which may read another one
        with self.trusted():
            return original(variable, value, *args, **kwargs)

    def _get(self, variable: Any) -> Any:
        try:
            handle = vars(variable)[_HANDLE]
        except KeyError:
            raise AttributeError(_HANDLE) from None
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


def _is_for_us() -> bool:
    """Whether it is code of this package that has TensorFlow read a variable."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (name := frame.f_globals.get("__name__", "")).startswith(("tensorflow.", __name__)):
        frame = frame.f_back
    return frame is not None and name.startswith("matex_tf.")


def _around(original: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(variable: Any, *args: Any, **kwargs: Any) -> Any:
        return around(original, variable, *args, **kwargs)

    return method


def _set(variable: Any, handle: Any) -> None:
    vars(variable)[_HANDLE] = handle
