"""What ranks compute together of the rows that each has. Every rank must come here."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from matex_tf.core import world
from matex_tf.errors import DataError

#: Up to so many bytes of all ranks a statistic is computed from all rows, with the bits that one rank has.
MOST_BYTES = 256 << 20


def what(name: str) -> str:
    """The purpose for which ranks meet, see `World.barrier`."""
    return f"compute np.{name} of the rows of a DataSet"


def whole(array: np.ndarray, purpose: str) -> np.ndarray:
    """The rows of all ranks, rank 0's first. Every rank must come here.

    Args:
        array: this rank's rows.
        purpose: see `World.barrier`.

    Raises:
        DataError: it is not the main thread that comes here.
    """
    rows = np.ascontiguousarray(array)
    if rows.dtype.kind == "U":  # of other lengths on other ranks
        return np.concatenate(everyone(rows, purpose))
    _check_thread(purpose)
    return world.current().allgather_rows(rows, purpose)


def everyone(value: Any, purpose: str) -> list[Any]:
    """What each rank has.

    Args:
        value: a picklable object.
        purpose: what it is for, for messages and for the comparison of ranks; `what` makes it.
    """
    _check_thread(purpose)
    return world.current().allgather(value, purpose)


def _check_thread(purpose: str) -> None:
    if threading.current_thread() is not threading.main_thread():
        raise DataError(
            f"cannot {purpose}: other ranks are met in the main thread only. Compute it there, before, or take "
            "np.asarray(array) for this rank's rows alone."
        )


def of_parts(func: Callable[..., Any], rows: np.ndarray, args: Any, kwargs: Any) -> Any:
    """A function of what it gives for the rows of each rank: the bits that one rank has.

    Args:
        func: of NumPy, such as `np.max` or `np.unique`: that of all rows is that of what it gives for each rank's.
        rows: this rank's, 0 or more.
        args, kwargs: the other arguments of `func`.
    """
    mine = func(rows, *args, **kwargs) if len(rows) else None
    parts = [part for part in everyone(mine, what(func.__name__)) if part is not None]
    if not parts:
        return func(rows, *args, **kwargs)
    return func(np.concatenate(parts)) if "unique" in func.__name__ else func(np.stack(parts), axis=0)


def of_moments(func: Callable[..., Any], rows: np.ndarray, args: Any, kwargs: Any) -> Any:
    """Mean, variance or standard deviation, from sums in float64.

    Args:
        func: of NumPy: mean, std, var, or one of these that leaves out NaN.
        rows: this rank's, 0 or more.
        args, kwargs: the other arguments of `func`: axis, keepdims and ddof; others are refused.
    """
    name = func.__name__
    given = inspect.signature(func).bind(rows, *args, **kwargs)
    if given.arguments.keys() - {"a", "axis", "keepdims", "ddof"}:
        raise refusal(name)
    axis = given.arguments.get("axis")

    def added_up(values: np.ndarray) -> Any:
        mine = np.sum(values, axis=axis, dtype=np.float64, keepdims=True, where=known)
        return sum(everyone(mine, what(name)))

    known: Any = ~np.isnan(rows) if name.startswith("nan") else True
    count = added_up(np.ones(rows.shape, np.int8))
    found = added_up(rows) / count
    if not name.endswith("mean"):
        found = added_up(np.square(rows - found)) / (count - given.arguments.get("ddof", 0))
        found = np.sqrt(found) if name.endswith("std") else found
    if not given.arguments.get("keepdims", False):
        found = np.squeeze(found, axis=axis)
    return found.astype(func(np.ones_like(rows, shape=(1, *rows.shape[1:]))).dtype)[()]


def refusal(name: str) -> DataError:
    """The error of what depends on all rows and cannot be computed from them."""
    return DataError(
        f"np.{name} of rows of a DataSet depends on the rows of all ranks, and this rank has a part of them, which is "
        f"what len() counts. Take np.{name}(shard.whole(array)), of shard = DataSet.open(…), and shard.total_rows for "
        f"their number; or np.{name}(np.asarray(array)) for this rank's rows alone (docs/data.md, Statistics)."
    )
