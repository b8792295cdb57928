"""The images that people label: files of a directory, or rows of an HDF5, NumPy or CSV file.

Files are only ever read, and only those that lie in the directory that was given. What an image claims to be is
compared with limits before it is unpacked, and nothing in a file is run: no pickles, no links to elsewhere.
"""

from __future__ import annotations

import os
import stat
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from matex_tf.errors import DataError, listed, quoted
from matex_tf.features.label import pixels

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".pgm", ".ppm")
MOST_IMAGES = 1_000_000
_LARGEST_FILE = 256 << 20  # bytes of one image
_SAMPLE = 200  # rows from which the range of numbers is found
_HDF5, _NUMPY, _TABLES = (".h5", ".hdf5", ".he5"), (".npy", ".npz"), (".csv", ".tsv", ".txt")


class Images(Protocol):
    """Images by their numbers, from 0. Threads may share them.

    Attributes:
        kind: what they are: `files`, `rows` (of arrays) or `table`.
        names: by which they are known, the same whenever the same images are opened.
    """

    kind: str
    names: list[str]

    def picture(self, number: int) -> Any:
        """An image as one of Pillow's, in its own size.

        Raises:
            DataError: it cannot be read.
        """

    def numbers(self, number: int, size: int) -> np.ndarray:
        """What a network learns from: uint8 (size, size, channels), or float32 (columns,) of a table.

        Args:
            number: of the image.
            size: pixels across; does not matter for a table.

        Raises:
            DataError: it cannot be read.
        """


def open_images(path: str, dataset: str = "") -> Images:
    """The images of a directory or a file.

    Args:
        dataset: of an HDF5 or .npz file, the array; of a table, its columns, by commas. "" where there is one choice.

    Raises:
        DataError: there are none, or not in a form that is known.
    """
    suffix = os.path.splitext(path)[1].lower()
    if os.path.isdir(path):
        return Files(path)
    if not os.path.exists(path):
        raise DataError(f"there is no {path}: give a directory of images, or an HDF5, NumPy or CSV file.")
    if not os.path.isfile(path):
        raise DataError(f"{path} is neither a directory nor a plain file.")
    try:
        if suffix in _HDF5:
            return _rows_of_hdf5(path, dataset)
        if suffix in _NUMPY:
            return _rows_of_numpy(path, dataset)
        if suffix in _TABLES:
            return _table(path, dataset)
    except DataError:
        raise
    except Exception as error:  # of a damaged file the libraries raise many kinds
        raise DataError(f"{path} cannot be read ({error}): is it complete?") from None
    known = listed([*_HDF5, *_NUMPY, *_TABLES])
    raise DataError(f"{path} ends in none of {known}: give one of those, or a directory of images.")


class Files:
    """The image files below a directory, by their paths in it. Links are not followed out of it."""

    kind = "files"

    def __init__(self, path: str):
        self._root = os.path.realpath(path)
        self.names = sorted(self._found())
        if not self.names:
            raise DataError(f"there is no image below {path}: files that end in {listed(SUFFIXES)} are looked for.")

    def _found(self) -> Iterator[str]:
        count = 0
        for folder, folders, files in os.walk(self._root, followlinks=False):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in files:
                inside = os.path.relpath(os.path.join(folder, name), self._root)
                if name.lower().endswith(SUFFIXES) and not name.startswith(".") and inside.isprintable():
                    count += 1
                    if count > MOST_IMAGES:
                        raise DataError(f"{self._root} has more than {MOST_IMAGES:,} images: give a part of it.")
                    yield inside

    def picture(self, number: int, size: int = 0) -> Any:
        name = self.names[number]
        path = os.path.realpath(os.path.join(self._root, name))
        if os.path.commonpath([path, self._root]) != self._root:
            raise DataError(f"{name} is a link that leads out of {self._root}.")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise DataError(f"{name} is not a plain file.")
                if found.st_size > _LARGEST_FILE:
                    raise DataError(
                        f"{name} has {found.st_size >> 20} MB, and an image may have {_LARGEST_FILE >> 20}."
                    )
                return pixels.decode(file, name, size)
        except OSError as error:
            raise DataError(f"{name} cannot be read ({error.strerror or error}).") from None

    def numbers(self, number: int, size: int) -> np.ndarray:
        return pixels.square(self.picture(number, size), size)


class Rows:
    """The rows of an array: images of numbers.

    Args:
        array: (rows, height, width), with or without an axis of channels at its end or after the rows.
        row: reads a row of it.
    """

    kind = "rows"

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, row: Callable[[int], np.ndarray], where: str):
        if len(shape) not in (3, 4) or dtype.kind not in "buif" or min(shape) < 1:
            raise DataError(f"{where} has shape {shape} and type {dtype}, which is not that of images of numbers.")
        self._first = len(shape) == 4 and shape[3] > 4 and shape[1] in (1, 3, 4)
        if len(shape) == 4 and not self._first and shape[3] not in (1, 3, 4):
            raise DataError(f"{where} has {shape[3]} channels; there can be 1, 3 or 4.")
        pixels.require_size(shape[3 if self._first else 2], shape[2 if self._first else 1], where)
        if shape[0] > MOST_IMAGES:
            raise DataError(f"{where} has {shape[0]:,} rows, and at most {MOST_IMAGES:,} can be labelled.")
        self._row, self._where, self._lock = row, where, threading.Lock()
        self.names = [str(number) for number in range(shape[0])]
        self._ends: tuple[float, float] | None = None
        if dtype != np.uint8:
            sample = np.stack([self._read(n) for n in range(0, shape[0], -(-shape[0] // _SAMPLE))]).astype(np.float64)
            known = sample[np.isfinite(sample)]
            low, high = np.percentile(known, [0.5, 99.5]) if known.size else (0.0, 1.0)
            self._ends = (float(low), max(float(high - low), 1e-30))

    def _read(self, number: int) -> np.ndarray:
        try:
            with self._lock:
                row = np.asarray(self._row(number))
        except Exception as error:
            raise DataError(f"row {number} of {self._where} cannot be read ({error}).") from None
        return np.moveaxis(row, 0, 2) if self._first else row

    def picture(self, number: int) -> Any:
        row = self._read(number)
        if self._ends is not None:
            low, width = self._ends
            row = np.nan_to_num(255 * (row.astype(np.float64) - low) / width).clip(0, 255).astype(np.uint8)
        return pixels.from_array(row)

    def numbers(self, number: int, size: int) -> np.ndarray:
        return pixels.square(self.picture(number), size)


class Table:
    """Rows of numbers, each drawn as a small plot of its columns, in units of their spread."""

    kind = "table"

    def __init__(self, values: np.ndarray, columns: list[str]):
        self.names = [str(number) for number in range(len(values))]
        self.columns = columns
        known = np.where(np.isfinite(values), values, np.nan)
        with warnings.catch_warnings():  # of columns without any number
            warnings.simplefilter("ignore", RuntimeWarning)
            middle, spread = np.nanmean(known, axis=0), np.nanstd(known, axis=0)
        self._values = np.nan_to_num((known - middle) / np.where(spread > 0, spread, 1)).clip(-10, 10)

    def picture(self, number: int) -> Any:
        return pixels.plot(self._values[number])

    def numbers(self, number: int, size: int) -> np.ndarray:
        return self._values[number].astype(np.float32)


def _rows_of_numpy(path: str, dataset: str) -> Images:
    if path.lower().endswith(".npy"):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        return _rows(array.shape, array.dtype, lambda number: array[number], path, array)
    with zipfile.ZipFile(path) as archive:
        sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
    name = _choose(path, dataset, list(sizes), ("images", "x", "x_train", "data"))
    _require_memory(sizes[name], f"{name} of {path}")
    with np.load(path, allow_pickle=False) as file:
        loaded = file[name]
    return _rows(loaded.shape, loaded.dtype, lambda number: loaded[number], f"{name} of {path}", loaded)


def _rows_of_hdf5(path: str, dataset: str) -> Images:
    import h5py

    file = h5py.File(path, "r")
    found: dict[str, Any] = {}

    def see(name: str, item: Any) -> None:  # visits what is in the file itself, and follows no links
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "buif" and 2 <= item.ndim <= 4:
            found[name] = item

    file.visititems(see)
    images = {name for name, item in found.items() if item.ndim > 2} or set(found)
    name = _choose(path, dataset, sorted(found if dataset else images), ("images", "x", "x_train", "data"))
    item = found[name]
    where = f"{name} of {path}"
    if item.is_virtual or item.external:
        raise DataError(f"{where} lies in other files, which are not read: copy it into one.")
    if item.chunks and np.prod(item.chunks, dtype=float) * item.dtype.itemsize > _LARGEST_FILE:
        raise DataError(f"{where} is stored in pieces of more than {_LARGEST_FILE >> 20} MB.")
    return _rows(item.shape, item.dtype, lambda number: item[number], where, item)


def _rows(shape: tuple[int, ...], dtype: np.dtype, row: Callable[[int], np.ndarray], where: str, whole: Any) -> Images:
    if len(shape) == 2 and dtype.kind in "buif":
        _require_memory(8 * shape[0] * shape[1], where)
        return Table(np.asarray(whole[:], np.float64), [str(number) for number in range(shape[1])])
    return Rows(shape, dtype, row, where)


def _table(path: str, columns: str) -> Table:
    import pandas

    _require_memory(2 * os.path.getsize(path), path)
    separator = "\t" if path.lower().endswith(".tsv") else ","
    try:
        frame = pandas.read_csv(path, sep=separator, compression=None, nrows=MOST_IMAGES + 1)
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError) as error:
        raise DataError(f"{path} is not a table ({error}).") from None
    if len(frame) > MOST_IMAGES:
        raise DataError(f"{path} has more than {MOST_IMAGES:,} rows: give a part of it.")
    wanted = [name.strip() for name in columns.split(",")] if columns else []
    if missing := [name for name in wanted if name not in frame.columns]:
        raise DataError(f"{path} has no column {listed(map(quoted, missing))}: it has {listed(frame.columns)}.")
    frame = (frame[wanted] if wanted else frame).select_dtypes("number")
    if not len(frame.columns) or not len(frame):
        raise DataError(f"{path} has no rows of numbers.")
    return Table(frame.to_numpy(np.float64), [str(name) for name in frame.columns])


def _choose(path: str, asked: str, names: list[str], usual: tuple[str, ...]) -> str:
    if asked:
        if asked not in names:
            raise DataError(f"{path} has no array {quoted(asked)}: it has {listed(names)}.")
        return asked
    chosen = names if len(names) == 1 else [name for name in usual if name in names]
    if not chosen:
        raise DataError(f"{path} has {listed(names) or 'no array of numbers'}: name the images by --dataset.")
    return chosen[0]


def _require_memory(wanted: int, where: str) -> None:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if wanted > free:
        raise DataError(f"{where} would take {wanted >> 20} MB of memory, and {free >> 20} MB are free.")
