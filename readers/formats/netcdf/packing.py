"""What the attributes of a NetCDF variable say about its numbers: missing values, packing, signs.

The dtype that a variable is handed out in is told by its type and its attributes alone, never by its values, so that
it is the same for every range of rows:

- `scale_factor`, `add_offset`: float32; float64 where the attributes are doubles and the variable has integers of 32
  bits or more, or where it is float64 itself.
- `_FillValue`, `missing_value`, and what is not within `valid_range`, or `valid_min` and `valid_max`: NaN. Integers
  that have one become float32 if they have 8 or 16 bits, and float64 if they have more, which hold them exactly (up to
  2^53). Labels stay integers, and a missing one is an error.
- Without these attributes numbers are as stored. A float that has the value which the library writes where nothing was
  written is NaN; for an integer it is an error, unless floats are asked for.
- `_Unsigned = "true"`: the integers are unsigned.

An attribute that the variable's type cannot hold is not used, as netCDF4 does it; a note says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from matex_tf.errors import DataError, quoted

_MEANING_NONE = ("_FillValue", "missing_value", "valid_range", "valid_min", "valid_max")

#: What the NetCDF library writes where nothing was written (netcdf.h, NC_FILL_*). Bytes have none that is no value.
_UNWRITTEN = {
    "i2": -32767,
    "i4": -2147483647,
    "f4": 9.969209968386869e36,
    "f8": 9.969209968386869e36,
    "u2": 65535,
    "u4": 4294967295,
    "i8": -9223372036854775806,
    "u8": 18446744073709551614,
}


@dataclass(frozen=True)
class Packing:
    """How the numbers of a variable are to be understood.

    Attributes:
        known: whether the variable holds numbers at all.
        stored: their dtype, in the machine's byte order, unsigned where an attribute says so.
        dtype, label_dtype: what they are handed out in as inputs and as labels.
        missing: values that stand for no value, as stored; of the attributes.
        lowest, highest: what is beyond them is no value either, as stored; None where there is no limit.
        unused: names of attributes that the variable's type cannot hold.
        unwritten: the value that the library writes where nothing was written; None where there is none.
        scale, offset: of packed numbers.
    """

    known: bool = False
    stored: np.dtype = np.dtype(np.float32)
    dtype: np.dtype = np.dtype(np.float32)
    label_dtype: np.dtype = np.dtype(np.float32)
    missing: tuple[Any, ...] = ()
    lowest: Any = None
    highest: Any = None
    unused: tuple[str, ...] = ()
    unwritten: Any = None
    scale: float | None = None
    offset: float | None = None

    @classmethod
    def of(cls, dtype: np.dtype, attributes: Mapping[str, Any]) -> Packing:
        """From a variable's type and attributes.

        Args:
            dtype: of the values in the file.
            attributes: of the variable, such as `scale_factor`, `_FillValue` and `_Unsigned`.
        """
        stored = dtype.newbyteorder("=")
        if stored.kind == "i" and str(attributes.get("_Unsigned", "")).lower() == "true":
            stored = np.dtype(f"u{stored.itemsize}")
        said = {key: attributes[key] for key in _MEANING_NONE if key in attributes}
        held = {key: _values(value, dtype.newbyteorder("="), stored) for key, value in said.items()}
        unused = tuple(key for key, value in said.items() if len(held[key]) < np.size(value))
        missing = [value for key in ("_FillValue", "missing_value") for value in held.get(key, [])]
        if len(held.get("valid_range", [])) == 2:
            lowest, highest = held["valid_range"]
        else:
            lowest, highest = ((held.get(key) or [None])[0] for key in ("valid_min", "valid_max"))
        some_are_none = missing or lowest is not None or highest is not None
        scale, offset = (_number(attributes, key) for key in ("scale_factor", "add_offset"))
        packed = scale is not None or offset is not None
        small = stored.kind in "iu" and stored.itemsize <= 2
        result = label = stored
        if packed:
            doubles = any(
                np.asarray(attributes[key]).dtype.itemsize == 8
                for key in ("scale_factor", "add_offset")
                if key in attributes
            )
            wide = stored == np.float64 or (doubles and stored.kind in "iu" and not small)
            result = label = np.dtype(np.float64 if wide else np.float32)
        elif some_are_none and stored.kind in "iu":
            result = np.dtype(np.float32 if small else np.float64)
        turned = stored.kind != dtype.kind  # `_Unsigned`: netCDF4 then takes no value for one that was never written
        own = turned or "_FillValue" in attributes
        unwritten = None if own else _UNWRITTEN.get(f"{stored.kind}{stored.itemsize}")
        limits = lowest, highest, unused
        return cls(True, stored, result, label, tuple(missing), *limits, unwritten, scale, offset)

    def unpack(self, raw: np.ndarray, dtype: np.dtype, label: bool, what: str, row: int) -> np.ndarray:
        """Stored numbers to those that are handed out.

        Args:
            raw: rows of the variable, as the file has them.
            dtype: of what is handed out.
            label: whether they are labels.
            what: names the variable in an error.
            row: the number of the first row in the file.

        Raises:
            DataError: a label is missing, or an input of integers.
        """
        values = raw.astype(raw.dtype.newbyteorder("="), copy=False)
        if values.dtype != self.stored:
            values = values.view(self.stored)
        gone = np.zeros(values.shape, bool)
        for value in self.missing:
            gone |= np.isnan(values) if value != value else values == value
        if self.lowest is not None:
            gone |= values < self.lowest
        if self.highest is not None:
            gone |= values > self.highest
        if self.unwritten is not None:
            gone |= values == values.dtype.type(self.unwritten)
        if gone.any() and (label or dtype.kind != "f"):
            first = int(np.flatnonzero(gone.reshape(len(gone), -1).any(axis=1))[0])
            where = f"row {row + first} of it has no value (counted from 0)"
            if label:
                raise DataError(f"{what} is the labels, and {where}.")
            raise DataError(
                f"{what}: {where}, but {self.unwritten}, which the library writes where nothing was written: say "
                "dtype='float32', in which it is NaN, or give the variable a _FillValue of another value."
            )
        if self.scale is not None or self.offset is not None:
            wide = values.astype(np.float64)
            values = wide * (1.0 if self.scale is None else self.scale) + (self.offset or 0.0)
        values = values.astype(dtype)  # a copy, which may be written to
        if gone.any() and dtype.kind == "f":
            values[gone] = np.nan
        return values


def _values(attribute: Any, raw: np.dtype, stored: np.dtype) -> list[Any]:
    """The values of an attribute that the variable can have; text, and numbers beyond its type, are left out."""
    if attribute is None or isinstance(attribute, str):
        return []
    values = np.atleast_1d(np.asarray(attribute))
    if values.dtype.kind not in "iuf":
        return []
    if values.dtype.newbyteorder("=") == raw:
        return list(values.astype(raw).view(stored))
    with np.errstate(invalid="ignore", over="ignore"):
        cast = values.astype(stored)
    return [new for old, new in zip(values, cast, strict=True) if old == new or (old != old and new != new)]


def _number(attributes: Mapping[str, Any], key: str) -> float | None:
    """Raises: DataError: it is not one number, so that what is stored cannot be understood."""
    if key not in attributes:
        return None
    values = np.atleast_1d(np.asarray(attributes[key]))
    if values.size != 1 or values.dtype.kind not in "iuf":
        raise DataError(f"has the {key} {quoted(attributes[key])}, which is not a number")
    return float(values[0])
