"""What callbacks go on with in another job: their attributes that are plain values, see `plain_encoder`.

Beyond those, tensors of TensorFlow, and functions of `keras.ops` and ufuncs of NumPy by their names: `EarlyStopping`
and its kin hold the function that compares. What an object of the script's own holds is not kept, with a line.

Relies on (Keras 3.3 to 3.15): public names of `keras.ops`.
"""

from __future__ import annotations

import functools
import io
import types
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf.errors import MatexError
from matex_tf.patches.common import keras_lines, log_once
from matex_tf.storage import plain_encoder

#: Attributes that belong to the job and not to the training, by the class that has them.
_OF_THE_JOB = {"CSVLogger": ("append", "append_header")}
_OF_EACH = ("_model", "model", "params")
#: What has no state, or none that a callback is there to keep.
_STATELESS = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type),
    *(functools.partial, np.ufunc, io.IOBase),
)
_DEEP = 10  # where nobody looks any further
_TENSOR, _OPS, _UFUNC = "tensor", "keras.ops", "numpy"


def take(callbacks: list[Any]) -> bytes:
    """The plain attributes of callbacks. A line names those that may change and are not kept."""
    kept, lost = [], []
    for callback in callbacks:
        kind = type(callback)
        attributes = {}
        for name, value in vars(callback).items():
            if name in _OF_EACH or name in _OF_THE_JOB.get(kind.__name__, ()):
                continue
            refused = plain_encoder.holds(value, f"{kind.__name__}.{name}", _other)
            if not refused:
                attributes[name] = value
            elif _may_change(value) and not keras_lines.of_keras(kind):
                lost.append(refused)
        kept.append((kind.__name__, attributes))
    for refused in lost:
        log_once.log(f"checkpoints leave out {refused}: after a restart it is as the script makes it")
    return plain_encoder.dumps(kept, _other)


def give_back(callbacks: list[Any], taken: bytes) -> None:
    """Let callbacks have the attributes that they had.

    Args:
        callbacks: of a `fit`. taken: what `take` gave of those before.

    Raises:
        MatexError: they are other callbacks.
    """
    kept = plain_encoder.loads(taken, _named)
    names = [type(callback).__name__ for callback in callbacks]
    if names != [name for name, _ in kept]:
        raise MatexError(
            f"the callbacks of a fit are {', '.join(names)}, and were {', '.join(name for name, _ in kept)} in the "
            "run that wrote the checkpoint: a script must do the same when it is run again."
        )
    for callback, (_, attributes) in zip(callbacks, kept, strict=True):
        vars(callback).update(attributes)


def _other(value: Any) -> plain_encoder.Name:
    """What stands for a value that is not plain."""
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
        return plain_encoder.Name(_TENSOR, value.numpy())
    if isinstance(value, (types.FunctionType, np.ufunc)):
        for where, module in ((_OPS, _ops()), (_UFUNC, np)):
            name = str(value.__name__)
            if getattr(module, name, None) is value:
                return plain_encoder.Name(where, name)
    raise plain_encoder.NotPlain(f"a {type(value).__name__}")


def _named(what: str, value: Any) -> Any:
    if what == _TENSOR:
        return tf.constant(value)
    found = getattr({_OPS: _ops(), _UFUNC: np}.get(what), str(value), None)
    if not isinstance(found, types.FunctionType if what == _OPS else np.ufunc):
        raise plain_encoder.Malformed(f"it names {what} {value!r:.80}, which is not known")
    return found


def _may_change(value: Any, depth: int = 0) -> bool:
    """Whether a value that is not plain may hold what a training has changed."""
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        inside = value.values() if isinstance(value, dict) else value
        return depth > _DEEP or any(_may_change(one, depth + 1) for one in inside)
    if isinstance(value, _STATELESS) or not plain_encoder.holds(value, "it", _other):
        return False
    return not type(value).__module__.startswith(("keras.", "tf_keras.", "tensorflow.", "matex_tf."))


def _ops() -> Any:
    import keras  # where a script is on Keras 2, this file is read before TensorFlow is complete

    return getattr(keras, "ops", None)  # Keras 2 has none
