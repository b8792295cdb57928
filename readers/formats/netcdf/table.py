"""NetCDF files: classic ones (CDF-1, CDF-2, CDF-5) by `classic`, netCDF-4 by the netCDF4 library."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from matex_tf.core.world import World
from matex_tf.errors import DataError, shortened
from matex_tf.readers.formats.netcdf import classic as netcdf_classic
from matex_tf.readers.formats.netcdf.packing import Packing
from matex_tf.readers.places import addresses
from matex_tf.readers.safety import read_watch, signature
from matex_tf.readers.safety.hdf5_storage import Storage, opened
from matex_tf.readers.tables.arrays import ArrayFile, ArrayTable, Column, data_errors, fill_each, open_each
from matex_tf.readers.tables.format import Format
from matex_tf.readers.tables.table import FileStamp, ReadOptions, Table, library
from matex_tf.readers.tables.values import decode, put

_CLASSIC = (b"CDF\x01", b"CDF\x02", b"CDF\x05")
_SUFFIXES = (".nc", ".nc4", ".cdf")

#: The NetCDF library may be used by one thread at a time. Taken around a fork, or a child could inherit it locked.
_library_lock = threading.Lock()
os.register_at_fork(
    before=_library_lock.acquire, after_in_parent=_library_lock.release, after_in_child=_library_lock.release
)


def open(paths: Sequence[str], wanted: ReadOptions, ranks: World) -> Table:
    """Open NetCDF files as one table. Every rank calls it.

    Rows are the leading dimension, unlimited or not, of inputs and labels alike. Variables of groups are named
    "group/name". Coordinates (a variable called like its dimension, or named in another's attribute `coordinates` or
    `bounds`) are taken only where they are named. What attributes do to values and dtypes: see `packing`.

    Raises:
        DataError: on every rank: a file cannot be read, or has not what is wanted.
    """
    return open_each(paths, wanted, ranks, "open NetCDF files", _open_one)


def guess_can_open(path: str, head: bytes) -> bool:
    """Whether it is a classic file, or an HDF5 file that was written as NetCDF: its name says so, or the library that
    wrote it.

    Of missing values and packed numbers HDF5 knows nothing, so such a file must not be taken for plain HDF5.
    """
    if head.startswith(_CLASSIC):
        return True
    if not signature.looks_like_hdf5(path, head):
        return False
    if path.lower().endswith(_SUFFIXES):
        return True
    h5py = library("h5py", path)
    try:
        with (
            read_watch.watched(path, "opened to find its format"),
            opened(h5py, path) as file,
        ):
            return "_NCProperties" in file.attrs
    except Exception:  # a damaged file: the reader of HDF5 says what is wrong with it
        return False


FORMAT = Format("netcdf", guess_can_open, open, ("nc", "pnetcdf"))


def _open_one(path: str, wanted: ReadOptions) -> Table:
    watched = FileStamp(path)
    with addresses.open(path, buffered=True) as file:
        head = file.read(4)
    if head in _CLASSIC:
        return ArrayTable(ClassicFile(path, watched), wanted)
    if not signature.is_hdf5(path):
        raise DataError(f"{path} is not a NetCDF file: it starts with {head!r}.")
    if addresses.is_address(path):
        raise DataError(
            f"{path} is netCDF-4, which its library reads only from disks: open it with xarray "
            '(engine="h5netcdf") and give DataSet.open what that returns, or download it first.'
        )
    return ArrayTable(Netcdf4File(path, watched), wanted)


@dataclass(frozen=True)
class Variable(Column):
    """A column and how its numbers are packed."""

    packing: Packing = field(default_factory=Packing)
    label: bool = False

    def as_label(self) -> Column:
        return self.but(label=True, dtype=self.packing.label_dtype) if self.packing.known else self

    def as_input(self, wanted: np.dtype) -> Column:
        floats = wanted.kind == "f" and self.packing.known and self.dtype.kind in "iu"
        return self.but(dtype=np.dtype(np.float64)) if floats and self.packing.unwritten is not None else self

    def unpack(self, raw: np.ndarray, path: str, row: int) -> np.ndarray:
        """What stands in the file as what is handed out; `row` is the first one's number.

        Args:
            raw: (rows, …), as the file has them.
            path: of the file, for messages.
            row: the number of the first row in the file, for messages.
        """
        if raw.dtype.kind == "S":
            joined = np.ascontiguousarray(raw).view(f"S{max(1, raw.shape[-1])}")[..., 0] if raw.ndim > 1 else raw
            return decode(joined, f"{path}: {self.name}")
        if not self.packing.known:
            return raw
        return self.packing.unpack(raw, self.dtype, self.label, f"{path}: variable {self.name}", row)


def _variable(
    name: str, shape: tuple[int, ...], dtype: Any, attributes: Mapping[str, Any], step: int = 1, refused: str = ""
) -> Variable:
    if not shape:
        return Variable(name, 0, (), np.dtype(np.void), refused=refused or "is a single value, and has no rows")
    if refused:
        return Variable(name, shape[0], shape[1:], np.dtype(np.void), refused=refused)
    if dtype is str:
        return Variable(name, shape[0], shape[1:], np.dtype(object), step)
    if dtype.kind == "S":
        width = shape[-1] if len(shape) > 1 else 1
        return Variable(name, shape[0], shape[1:-1], np.dtype(f"U{max(1, width)}"), step)
    try:
        packing = Packing.of(dtype, attributes)
    except DataError as error:
        return Variable(name, shape[0], shape[1:], np.dtype(np.void), refused=str(error))
    return Variable(name, shape[0], shape[1:], packing.dtype, step, packing=packing)


def _mark_auxiliary(variables: Mapping[str, tuple[Variable, tuple[str, ...], Mapping[str, Any]]]) -> dict[str, Column]:
    """The variables as columns; coordinates, and what belongs to them, are not found without being named."""
    belongs = {
        word
        for _, _, attributes in variables.values()
        for key in ("coordinates", "bounds", "grid_mapping", "ancillary_variables")
        if isinstance(attributes.get(key), str)
        for word in attributes[key].split()
    }
    return {
        name: variable.but(auxiliary=last in belongs or dimensions == (last,))
        for name, (variable, dimensions, _) in variables.items()
        for last in [name.rpartition("/")[2]]
    }


def _notes(columns: Mapping[str, Column], names: Sequence[str]) -> tuple[str, ...]:
    """What is to be said of variables that are taken."""
    return tuple(
        f"variable {shortened(name)}: {key} is no value that {column.packing.stored} can have, and is not used"
        for name, column in ((name, columns[name]) for name in names)
        if isinstance(column, Variable)
        for key in column.packing.unused
    )


class ClassicFile(ArrayFile):
    """The variables of one CDF-1, CDF-2 or CDF-5 file."""

    kind = "variable"

    def __init__(self, path: str, watched: FileStamp):
        """Raises: DataError: the header is damaged."""
        super().__init__((watched,))
        self.path = path
        with data_errors(path, "read as NetCDF", self.watched):
            self._stored = {one.name: one for one in netcdf_classic.parse(path, watched.bytes)}
            self.columns = _mark_auxiliary(
                {
                    name: (
                        _variable(name, one.shape, one.dtype, one.attributes, refused=self._unfit(one)),
                        one.dimensions,
                        one.attributes,
                    )
                    for name, one in self._stored.items()
                }
            )

    def check(self, names: Sequence[str]) -> None:
        self.notes += _notes(self.columns, names)

    def _unfit(self, one: netcdf_classic.NetcdfVariable) -> str:
        length = self.watched[0].bytes
        return f"is cut short: it ends at byte {one.end}, and the file has {length} bytes" if one.end > length else ""

    def fill(self, columns: Sequence[Column], out: Sequence[np.ndarray], start: int, stop: int) -> None:
        stored = [self._stored[column.name] for column in columns]
        for number, low, raw in netcdf_classic.read_rows(self.path, stored, start, stop):
            column = columns[number]
            assert isinstance(column, Variable)
            values = column.unpack(raw, self.path, low)
            put(out[number][low - start : low - start + len(raw)], values, column.name, low)


class Netcdf4File(ArrayFile):
    """The variables of one netCDF-4 file."""

    kind = "variable"

    def __init__(self, path: str, watched: FileStamp):
        """Raises: DataError: the file cannot be read."""
        super().__init__((watched,))
        self.path = path
        self._netcdf4 = library("netCDF4", path)
        with self._opened("read as NetCDF") as dataset:
            found = {}
            for name, variable in self._walk(dataset, ""):
                attributes = {key: variable.getncattr(key) for key in variable.ncattrs()}
                chunks = variable.chunking()
                step = chunks[0] if isinstance(chunks, (list, tuple)) and chunks else 1
                user = isinstance(variable.datatype, (self._netcdf4.CompoundType, self._netcdf4.VLType))
                refused = ""
                if user and variable.dtype is not str:
                    refused = "is of a compound type or has rows of varying length, which make no array"
                dtype = variable.dtype if variable.dtype is str else np.dtype(variable.dtype)
                shape = tuple(map(int, variable.shape))
                column = _variable(name, shape, dtype, attributes, step, refused)
                found[name] = column, tuple(variable.dimensions), attributes
            self.columns = _mark_auxiliary(found)

    @contextlib.contextmanager
    def _opened(self, doing: str) -> Iterator[Any]:
        with (
            data_errors(self.path, doing, self.everything),
            _library_lock,
            self._netcdf4.Dataset(self.path, "r") as dataset,
        ):
            dataset.set_auto_maskandscale(False)
            dataset.set_auto_chartostring(False)
            yield dataset

    def check(self, names: Sequence[str]) -> None:
        self.notes += _notes(self.columns, names)
        # The library says nothing of where HDF5 stores a variable, nor of rows that only others of the dimension have.
        h5py = library("h5py", self.path)
        with (
            data_errors(self.path, "read as HDF5", self.everything),
            h5py.File(self.path, "r", locking="best-effort") as file,
        ):
            for name in names:
                group, _, last = name.rpartition("/")
                found = file[name] if name in file else file.get(f"{group}/_nc4_non_coord_{last}")
                if not isinstance(found, h5py.Dataset):
                    continue
                column, written = self.columns[name], found.shape[0] if found.shape else 0
                if written < column.rows and (column.dtype.kind != "f" or not written):
                    raise DataError(
                        f"{self.path}: variable {shortened(name)} was written up to row {written} of {column.rows}, "
                        "and the rest would be fill values."
                    )
                self.take_note(name, Storage(h5py, found, self.path))

    def _walk(self, group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        for name, variable in group.variables.items():
            yield prefix + name, variable
        for name, inner in group.groups.items():
            yield from self._walk(inner, f"{prefix}{name}/")

    def fill(self, columns: Sequence[Column], out: Sequence[np.ndarray], start: int, stop: int) -> None:
        with self._opened(f"read (rows {start} to {stop})") as dataset:

            def read(column: Column, low: int, high: int) -> np.ndarray:
                assert isinstance(column, Variable)
                raw = np.asarray(dataset[column.name][low:high])
                return column.unpack(raw, self.path, low)

            fill_each(columns, out, start, stop, read)
