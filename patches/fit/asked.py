"""What `fit` is asked for is the same on every rank, such as class weights that a script has computed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from matex_tf import settings
from matex_tf.core import world

#: Arguments of `fit`, public.
COMPARED = (
    *("batch_size", "epochs", "initial_epoch", "steps_per_epoch", "class_weight", "shuffle"),
    *("validation_split", "validation_steps", "validation_batch_size", "validation_freq"),
)


def epochs(fit: Callable[..., Any], args: Any, kwargs: Any) -> int:
    """How many epochs a call of `fit` has, at most. Args: see `compare`."""
    given = inspect.signature(fit).bind(*args, **kwargs).arguments
    return int(given.get("epochs", 1)) - int(given.get("initial_epoch", 0))


def compare(fit: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Compare the arguments of a call of `fit`. All ranks come here.

    Args:
        fit: bound to the model. args, kwargs: of the call.

    Raises:
        RanksDisagree: one of `COMPARED` differs.
    """
    if settings.current().is_guest:  # groups come while others train
        return
    given = inspect.signature(fit).bind(*args, **kwargs).arguments
    asked = [f"{name}={_described(given[name])}" for name in COMPARED if given.get(name) is not None]
    world.current().barrier("compare what fit is asked for", asked)


def _described(value: Any) -> str:
    """A value in words, numbers without the digits that rounding changes."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_described(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple, set)):
        return "[" + ", ".join(map(_described, value)) + "]"
    number = isinstance(value, (float, np.floating)) or (isinstance(value, np.ndarray) and value.dtype.kind == "f")
    return np.array2string(np.asarray(value), precision=6) if number else str(value)
