"""One HDF5 file, by h5py: its datasets, and their rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from matex_tf.errors import DataError, listed
from matex_tf.readers.safety import signature
from matex_tf.readers.safety.hdf5_storage import Storage, opened
from matex_tf.readers.tables.arrays import ArrayFile, Column, data_errors, fill_each
from matex_tf.readers.tables.table import FileStamp, library
from matex_tf.readers.tables.values import decode, native


class Hdf5File(ArrayFile):
    """The datasets of one file."""

    kind = "dataset"

    def __init__(self, path: str):
        """Raises: DataError: the file cannot be read, or is not an HDF5 file."""
        self.path = path
        super().__init__((FileStamp(path),))
        self._h5py = library("h5py", path)
        if not signature.is_hdf5(path):
            raise DataError(f"{path} is not an HDF5 file: the signature is not there.")
        with self._opened("read as HDF5") as file:
            self.columns = {name: self._column(name, found) for name, found in self._datasets(file)}

    @contextlib.contextmanager
    def _opened(self, doing: str) -> Iterator[Any]:
        with data_errors(self.path, doing, self.everything), opened(self._h5py, self.path) as file:
            yield file

    def _datasets(self, file: Any) -> Iterator[tuple[str, Any]]:
        """Every dataset with its name; for a link that leads nowhere, why, in place of the dataset."""
        seen = {(file.filename, self._h5py.h5o.get_info(file.id).addr)}
        waiting = [("", file)]
        while waiting:
            prefix, group = waiting.pop(0)
            for name in group:
                place = f"{prefix}{name}"
                link = group.get(name, getlink=True)
                try:
                    found = group[name]
                except (KeyError, OSError) as error:
                    if isinstance(link, self._h5py.HardLink):
                        raise
                    yield place, f"is a link to {_target(link)}, which is not there ({error.args[0]})"
                    continue
                if isinstance(found, self._h5py.Dataset):
                    yield place, found
                elif isinstance(found, self._h5py.Group):
                    key = found.file.filename, self._h5py.h5o.get_info(found.id).addr
                    if key not in seen:  # a group can be linked into itself
                        seen.add(key)
                        waiting.append((f"{place}/", found))

    def _column(self, name: str, found: Any) -> Column:
        if isinstance(found, str):
            return Column(name, 0, (), np.dtype(np.void), refused=found)
        if not found.shape:
            what = "has no data" if found.shape is None else "is a single value"
            return Column(name, 0, (), np.dtype(np.void), refused=f"{what}, and has no rows")
        dtype, shape, refused = found.dtype, tuple(found.shape[1:]), ""
        if dtype.subdtype is not None:
            dtype, inner = dtype.subdtype
            shape += inner
        text = self._h5py.check_string_dtype(dtype)
        if dtype.names:
            refused = f"is compound (fields {listed(dtype.names)}): write a dataset for each field"
        elif text is not None and text.length is None:
            dtype = np.dtype(object)
        elif dtype.kind not in "biufcS":
            refused = "holds references, rows of varying length or opaque bytes, which make no array"
        else:
            dtype = native(np.dtype(dtype.str))  # by its str: enums lose their names and are numbers
        return Column(name, found.shape[0], shape, dtype, (found.chunks or (1,))[0], refused)

    def check(self, names: Sequence[str]) -> None:
        with self._opened("read as HDF5") as file:
            for name in names:
                self.take_note(name, Storage(self._h5py, file[name], self.path))

    def fill(self, columns: Sequence[Column], out: Sequence[np.ndarray], start: int, stop: int) -> None:
        with self._opened(f"read (rows {start} to {stop})") as file:
            fill_each(columns, out, start, stop, lambda column, low, high: self._read(file, column, low, high))

    def fill_ranges(self, parts: Sequence[tuple[Column, np.ndarray, int, int]]) -> None:
        """Read a range of its own of each of some columns.

        Args:
            parts: column, array for its rows, first row, one past the last.
        """
        with self._opened("read") as file:
            for column, array, start, stop in parts:
                fill_each([column], [array], start, stop, lambda c, low, high: self._read(file, c, low, high))

    def _read(self, file: Any, column: Column, low: int, high: int) -> np.ndarray:
        dataset = file[column.name]
        if column.dtype.kind == "O":
            return dataset.asstr()[low:high]
        got = dataset[low:high]
        return decode(got, f"{self.path}: {column.name}") if got.dtype.kind == "S" else got


def _target(link: Any) -> str:
    file = getattr(link, "filename", "")
    return f"{link.path} in {file}" if file else str(link.path)
