"""A layer of a script gets the arguments that the candidate has for its name: dense_1.units, conv2d*.filters.

Relies on (Keras 3.3 to 3.15): `keras.layers` and the names of their arguments, public; and on how a layer without a
name gets one: `keras.src.utils.naming.to_snake_case` and the counters of `keras.src.backend.common.global_state`
(private).
"""

from __future__ import annotations

import fnmatch
import inspect
from types import ModuleType
from typing import Any

import wrapt

from matex_tf.errors import SettingError
from matex_tf.features.blueprints.candidates import candidate

_COUNTERS = "object_name_uids"


def install(module: ModuleType) -> None:
    """Patch the layers of keras.src.layers that have an argument which a candidate can change."""
    base = module.Layer
    for name, kind in list(vars(module).items()):
        if isinstance(kind, type) and issubclass(kind, base) and "__init__" in vars(kind):
            wrapt.wrap_function_wrapper(module, f"{name}.__init__", _Init(kind))


class _Init:
    """Wraps `__init__` of a class; a class that is derived from it has its own."""

    def __init__(self, kind: type[Any]):
        self.kind = kind

    def __call__(self, wrapped: Any, layer: Any, args: Any, kwargs: Any) -> Any:
        now = candidate.current()
        if now is None or type(layer) is not self.kind:
            return wrapped(*args, **kwargs)
        name = kwargs.get("name") or _next_name(self.kind.__name__)
        wanted: dict[str, Any] = {}
        for key, value in now.values.items():
            pattern, dot, argument = key.rpartition(".")
            if dot and any(fnmatch.fnmatchcase(name, one.strip()) for one in pattern.split(",")):
                wanted[argument] = value
                candidate.ask(key)
        if wanted:
            bound = inspect.signature(wrapped).bind(*args, **kwargs)
            for argument, value in wanted.items():
                if argument not in inspect.signature(wrapped).parameters:
                    raise SettingError(f"the layer {name}, a {self.kind.__name__}, takes no {argument}.")
                bound.arguments[argument] = value
            args, kwargs = bound.args, bound.kwargs
        return wrapped(*args, **kwargs)


def _next_name(kind: str) -> str:
    """The name that Keras is about to give to a layer of this class."""
    from keras.src.backend.common import global_state
    from keras.src.utils import naming

    name = naming.to_snake_case(kind)
    counted = (global_state.get_global_attribute(_COUNTERS) or {}).get(name, 0)
    return f"{name}_{counted}" if counted else str(name)
