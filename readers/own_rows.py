"""Arrays of this rank's rows: a statistic over the rows is that of all ranks, or an error.

`shard.data` and `shard.labels` are such arrays where there is more than one rank. What NumPy computes row by row gives
such an array again. A statistic that does not grow with the rows (mean, std, min, percentile, unique, cov) is computed
from the rows of all ranks, and every rank must come to it. What grows with the rows (sum, bincount) is refused: `len`
counts this rank's rows, and a quotient of both would be wrong. So are positions of rows (argmax, argsort) and the order
of all rows (sort, cumsum).

What leaves NumPy (`np.asarray`, pandas, `list`) is a plain array of this rank's rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from matex_tf.errors import DataError
from matex_tf.readers import of_all_ranks


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


#: Functions of NumPy that work on each row by itself, or take rows away, or put rows after rows.
BY_ROW = _names(
    "nan_to_num clip round around fix real imag angle real_if_close iscomplex isreal isneginf isposinf "
    "isclose isin in1d where select piecewise digitize interp searchsorted sinc i0 copy zeros_like "
    "ones_like empty_like full_like reshape ravel concatenate vstack row_stack hstack column_stack append "
    "expand_dims squeeze atleast_1d atleast_2d delete compress extract nonzero flatnonzero argwhere "
    "astype copyto putmask place put_along_axis take_along_axis take choose pad split array_split"
)
#: Of these the second argument is looked up in, or looks for all that there are.
_LOOK_UP = _names("isin in1d digitize interp")
#: Those that look at this rank's array alone.
OF_RANK = _names(
    "shape ndim size result_type can_cast common_type min_scalar_type may_share_memory shares_memory "
    "array_repr array_str array2string save savez savez_compressed savetxt iscomplexobj isrealobj"
)
#: Statistics of rows that do not grow with them.
OF_ALL = _names(
    "mean average median std var min max amin amax ptp any all percentile quantile nanmean nanmedian "
    "nanstd nanvar nanmin nanmax nanpercentile nanquantile unique unique_values union1d intersect1d "
    "setdiff1d cov corrcoef histogram_bin_edges"
)
#: Those that hold if they hold for the rows of each rank.
_ALIKE = _names("array_equal array_equiv allclose")
#: Of statistics, those of which the ranks find one each in its rows, and then one in those.
_OF_PARTS = _names("min max amin amax nanmin nanmax any all unique unique_values")
_OF_MOMENTS = _names("mean nanmean std nanstd var nanvar")
#: The same as reductions of functions of two arguments.
_JOINING = ("minimum", "maximum", "fmin", "fmax", "logical_and", "logical_or", "bitwise_and", "bitwise_or")
#: Functions that change places of axes.
_OF_AXES = ("transpose", "swapaxes", "moveaxis", "rollaxis", "permute_dims", "matrix_transpose")


class OwnRows(np.ndarray[Any, Any]):
    """An array whose first axis runs over the rows of this rank."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **kwargs: Any) -> Any:
        named = f"{ufunc.__name__}.{method}" if method != "__call__" else ufunc.__name__
        if out:
            kwargs["out"] = tuple(map(_plain, out))
        if "where" in kwargs:
            kwargs["where"] = _plain(kwargs["where"])
        run = getattr(ufunc, method)
        if method in ("reduce", "accumulate"):
            rows = inputs[0]
            if not isinstance(rows, OwnRows) or 0 not in _axes(kwargs.get("axis", 0), rows.ndim):
                return _given(out, _marked(run(*map(_plain, inputs), **kwargs), inputs))
            if method == "reduce" and ufunc.__name__ in _JOINING and not out:
                parts = of_all_ranks.everyone(
                    run(_plain(rows), **kwargs) if len(rows) else None, of_all_ranks.what(named)
                )
                return ufunc.reduce(np.stack([part for part in parts if part is not None]), axis=0)
            raise of_all_ranks.refusal(named)
        if method == "at":
            return run(*map(_plain, inputs), **kwargs)
        if method == "__call__" and (_rows_times(inputs) if ufunc.signature else _aligned(inputs)):
            return _given(out, _marked(run(*map(_plain, inputs), **kwargs), inputs))
        return _given(out, run(*map(_gatherer(named), inputs), **kwargs))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _apply(func, args, kwargs)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return _marked(array, (self,))

    def __getitem__(self, key: Any) -> Any:
        found = np.ndarray.__getitem__(_plain(self), _map(_plain, key))
        if not isinstance(found, np.ndarray):
            return found
        first = key[0] if isinstance(key, tuple) and key else key
        if first is None:
            return np.ndarray.__getitem__(
                of_all_ranks.whole(_plain(self), of_all_ranks.what("newaxis")), _map(_plain, key)
            )
        if first is Ellipsis:
            keeps = not isinstance(key, tuple) or len(key) <= self.ndim
        else:
            keeps = isinstance(first, (slice, list, np.ndarray, range)) or (isinstance(key, tuple) and not key)
        return found.view(OwnRows) if keeps and found.ndim else found

    def __setitem__(self, key: Any, value: Any) -> None:
        np.ndarray.__setitem__(_plain(self), _map(_plain, key), _map(_plain, value))

    def __iter__(self) -> Iterator[Any]:
        return iter(_plain(self))

    def __repr__(self) -> str:
        return repr(_plain(self))

    def __str__(self) -> str:
        return str(_plain(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _plain(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        return _plain(self).copy().view(OwnRows)

    @property
    def T(self) -> Any:  # noqa: N802
        return self.transpose()

    def transpose(self, *axes: Any) -> Any:
        return np.transpose(self, axes[0] if len(axes) == 1 else axes or None)

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        return _marked(_plain(self).reshape(*shape, **kwargs), (self,), True)

    def flatten(self, order: Any = "C") -> Any:
        return self.reshape(-1, order=order).copy()

    def nonzero(self) -> Any:
        return _plain(self).nonzero()


def _of_array(name: str) -> Callable[..., Any]:
    """A method that does what the function of the same name does."""

    def method(self: OwnRows, *args: Any, **kwargs: Any) -> Any:
        return _apply(getattr(np, name), (self, *args), kwargs)

    return method


for _name in _names(
    "sum prod mean std var min max any all argmin argmax argsort argpartition cumsum cumprod trace swapaxes diagonal "
    "repeat take compress choose round clip ravel squeeze dot"
):
    setattr(OwnRows, _name, _of_array(_name))


def own(arrays: Any) -> Any:
    """Arrays of this rank's rows, or a tuple of them, as `OwnRows`; None stays."""
    if isinstance(arrays, tuple):
        return tuple(map(own, arrays))
    return None if arrays is None else arrays.view(OwnRows)


def _apply(func: Any, args: Any, kwargs: Any) -> Any:
    """A function of NumPy, of which an argument is an `OwnRows`."""
    name, owned = func.__name__, list(_found((args, tuple(kwargs.values()))))
    gather = _gatherer(name)

    def on(change: Callable[[Any], Any], first: Callable[[Any], Any] | None = None) -> Any:
        changed = [_map(first or change, args[0]), *_map(change, args[1:])] if args else []
        return func(*changed, **{key: _map(change, one) for key, one in kwargs.items()})

    if name in OF_RANK:
        return on(_plain)
    if name in _OF_AXES:
        return _marked(on(_plain), owned, True) if _rows_stay_first(func, args, kwargs) else on(gather)
    if name in _LOOK_UP:
        return _marked(on(gather, _plain), owned)
    if name in BY_ROW and not (name == "searchsorted" and isinstance(args[0], OwnRows)):
        return _marked(on(_plain), owned, True)
    if (name == "dot" and _rows_times(args)) or _passes_by(func, args, kwargs):
        return _marked(on(_plain), owned)
    if name in _ALIKE:
        return all(of_all_ranks.everyone(bool(on(_plain)), of_all_ranks.what(name)))
    one = len(owned) == 1 and bool(args) and args[0] is owned[0]
    if one and name in _OF_PARTS and not ("unique" in name and (kwargs or args[1:])):
        return of_all_ranks.of_parts(func, _plain(args[0]), args[1:], kwargs)
    if name not in OF_ALL or (name == "unique" and (args[1:] or kwargs.keys() - {"axis", "equal_nan"})):
        raise of_all_ranks.refusal(name)
    if not _fits(owned, name):
        if not (one and name in _OF_MOMENTS):
            raise DataError(
                f"np.{name} of rows of a DataSet needs the rows of all ranks at once, and these are more than "
                f"{of_all_ranks.MOST_BYTES >> 20} MB: take mean, std, var, min, max or unique, or open it with rows=."
            )
        return of_all_ranks.of_moments(func, _plain(args[0]), args[1:], kwargs)
    return on(gather)


def _passes_by(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a function works along other axes of its first argument than that of the rows."""
    if not args or not isinstance(args[0], OwnRows) or _holds_rows((args[1:], tuple(kwargs.values()))):
        return False
    try:
        given = inspect.signature(func).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return False
    given.apply_defaults()
    axis = given.arguments.get("axis")
    return axis is not None and not np.ndim(given.arguments.get("q", 0)) and 0 not in _axes(axis, args[0].ndim)


def _rows_stay_first(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the first axis is that of the rows once a function has changed their places."""

    def probe(value: Any) -> Any:  # an array none of whose axes are as long as another
        return np.empty(range(2, 2 + value.ndim), bool) if isinstance(value, OwnRows) else value

    found = func(*_map(probe, args), **kwargs)
    return bool(found.ndim) and found.shape[0] == 2


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, OwnRows) else value


def _gatherer(name: str) -> Callable[[Any], Any]:
    return lambda value: (
        of_all_ranks.whole(_plain(value), of_all_ranks.what(name)) if isinstance(value, OwnRows) else value
    )


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    """A value with each array that it holds changed."""
    if type(value) in (tuple, list):
        return type(value)(_map(change, one) for one in value)
    return change(value)


def _found(value: Any) -> Iterator[OwnRows]:
    if isinstance(value, OwnRows):
        yield value
    elif type(value) in (tuple, list):
        for one in value:
            yield from _found(one)


def _fits(owned: list[OwnRows], name: str) -> bool:
    return (
        sum(of_all_ranks.everyone(sum(one.nbytes for one in owned), of_all_ranks.what(name))) <= of_all_ranks.MOST_BYTES
    )


def _holds_rows(value: Any) -> bool:
    return next(_found(value), None) is not None


def _axes(axis: Any, ndim: int) -> list[int]:
    """Axes that a function works along, counted from 0; all for None."""
    if axis is None:
        return list(range(ndim))
    return [int(one) % max(ndim, 1) for one in np.atleast_1d(axis)]


def _rows_times(inputs: Any) -> bool:
    """Whether rows are multiplied by a matrix that every rank has."""
    return isinstance(inputs[0], OwnRows) and inputs[0].ndim == 2 and not _holds_rows(inputs[1:])


def _marked(result: Any, owned: Sequence[Any], rows_change: bool = False) -> Any:
    """What was computed by row as `OwnRows`.

    Args:
        owned: the arguments.
        rows_change: whether it may have other numbers of rows.
    """
    if type(result) in (tuple, list):
        return type(result)(_marked(one, owned, rows_change) for one in result)
    if not isinstance(result, np.ndarray) or not result.ndim:
        return result
    counts = {len(one) for one in owned if isinstance(one, OwnRows) and one.ndim}
    return result.view(OwnRows) if len(result) in counts or (rows_change and len(result) != 1) else result


def _aligned(inputs: Any) -> bool:
    """Whether the first axis of what these are computed to is that of the rows."""
    most = max(np.ndim(one) for one in inputs)
    return all(one.ndim == most for one in inputs if isinstance(one, OwnRows))


def _given(out: Any, result: Any) -> Any:
    """What a function of NumPy returns where it was given arrays to put its results into."""
    return result if not out else out[0] if len(out) == 1 else out
