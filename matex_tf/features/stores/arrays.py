"""Arrays that a library reads in parts by itself: those of a Zarr store, and of an `xarray.Dataset`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from matex_tf.core.world import World
from matex_tf.errors import DataError, shortened
from matex_tf.readers.places import addresses
from matex_tf.readers.tables.arrays import ArrayFile, ArrayTable, Column, data_errors, fill_each, open_each
from matex_tf.readers.tables.format import Format
from matex_tf.readers.tables.table import FileStamp, ReadOptions, Table, library
from matex_tf.readers.tables.values import native

#: The files that say what a Zarr store has, of Zarr 3 and 2.
_HEADERS = ("zarr.json", ".zmetadata", ".zgroup", ".zarray")


class ArraysOf(ArrayFile):
    """Arrays by name, each of which gives a range of its rows."""

    def __init__(self, path: str, arrays: Mapping[str, Any], watched: Sequence[FileStamp], coordinates: Sequence[Any]):
        super().__init__(watched)
        self.path = path
        self._arrays = dict(arrays)
        self.columns = {name: _column(name, one, name in coordinates) for name, one in arrays.items()}
        self.unpacked = sum(int(np.prod(one.shape, dtype=object)) * one.dtype.itemsize for one in arrays.values())

    def fill(self, columns: Sequence[Column], out: Sequence[np.ndarray], start: int, stop: int) -> None:
        def read(column: Column, low: int, high: int) -> np.ndarray:
            return np.asarray(self._arrays[column.name][low:high])

        fill_each(columns, out, start, stop, read)


class ZarrStore(ArraysOf):
    """A Zarr store. Raises: DataError: it cannot be read, or has no arrays."""

    def __init__(self, path: str):
        self._zarr = library("zarr", path)
        headers = [f"{path.rstrip('/')}/{name}" for name in _HEADERS]
        watched = FileStamp(next((one for one in headers if _is_there(one)), headers[0]))
        with data_errors(path, "read as Zarr", [watched]):
            opened = self._zarr.open(path.removeprefix("file://"), mode="r")
            arrays = {"array": opened} if isinstance(opened, self._zarr.Array) else dict(_walk(opened, ""))
        if not arrays:
            raise DataError(f"{path} is a Zarr store without arrays.")
        super().__init__(path, arrays, [watched], ())

    def check(self, names: Sequence[str]) -> None:
        """Raises: DataError: nothing of an array was written, which Zarr would fill with a value of its own."""
        for name in names:
            array = self._arrays[name]
            if array.size and addresses.scheme(self.path) not in addresses.WEB and array.nchunks_initialized == 0:
                raise DataError(
                    f"{self.path}: array {shortened(name)} was made and never written: every value of it would be "
                    f"{array.fill_value}."
                )


def is_store(path: str) -> bool:
    """Whether a path is that of a Zarr store: by its name at an address, by its header on a disk."""
    if addresses.is_address(path):
        return path.rstrip("/").endswith(".zarr")
    return any(os.path.isfile(os.path.join(path, name)) for name in _HEADERS)


def is_xarray(given: Any) -> bool:
    """Whether it is an `xarray.Dataset`, without an import of xarray."""
    return type(given).__module__.partition(".")[0] == "xarray" and hasattr(given, "data_vars")


def open(paths: Sequence[str], wanted: ReadOptions, ranks: World) -> Table:
    """Open Zarr stores as one table. Every rank calls it.

    An array of a group is named "group/name"; a store that is one array calls it "array". Chunks that were never
    written have the store's fill value, as in Zarr.

    Raises:
        DataError: on every rank: a store cannot be read, or has not what is wanted.
    """
    return open_each(paths, wanted, ranks, "open Zarr stores", lambda path, one: ArrayTable(ZarrStore(path), one))


def open_xarray(given: Any, wanted: ReadOptions, ranks: World) -> Table | None:
    """A dataset of xarray as a table: its variables, whose first dimension runs over rows. Every rank calls it.

    xarray reads what is asked for: open it with `chunks=None` from a file or a store, on every rank.

    Args:
        given: an `xarray.Dataset`, the same on every rank; of anything else there is no table.
        wanted: see `ReadOptions`; variables are named.
        ranks: who reads.

    Raises:
        DataError: on every rank: it has not what is wanted.
    """
    if not is_xarray(given):
        return None
    path = str(given.encoding.get("source") or "xarray.Dataset")
    arrays = {str(name): given[name] for name in (*given.data_vars, *given.coords)}
    coordinates = list(map(str, given.coords))

    def open_one(path: str, wanted: ReadOptions) -> Table:
        file = ArraysOf(path, {name: arrays[name] for name in arrays}, (), coordinates)
        file.kind = "variable"
        return ArrayTable(file, wanted)

    table = open_each([path], wanted, ranks, "open a dataset of xarray", open_one)
    table.format = "xarray"
    return table


def guess_can_open(path: str, head: bytes) -> bool:
    """A store is a directory, and none of its files."""
    return False


FORMAT = Format("zarr", guess_can_open, open, is_store=is_store, open_object=open_xarray)


def _column(name: str, array: Any, coordinate: bool) -> Column:
    dtype, shape = np.dtype(array.dtype), tuple(array.shape)
    if not shape:
        return Column(name, 0, (), np.dtype(np.void), refused="is a single value, and has no rows")
    if dtype.kind not in "biufcSU":
        why = f"is of type {dtype}: save numbers or text of a fixed length"
        return Column(name, shape[0], shape[1:], np.dtype(np.void), refused=why, auxiliary=coordinate)
    chunks = getattr(array, "chunks", None) or (1,)
    step = chunks[0] if isinstance(chunks[0], int) else max(chunks[0], default=1)
    return Column(name, shape[0], shape[1:], native(dtype), step, auxiliary=coordinate)


def _walk(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, array in group.arrays():
        yield f"{prefix}{name}", array
    for name, inner in group.groups():
        yield from _walk(inner, f"{prefix}{name}/")


def _is_there(path: str) -> bool:
    if not addresses.is_address(path):
        return os.path.isfile(path)
    try:
        addresses.look(path)
    except DataError:
        return False
    return True
