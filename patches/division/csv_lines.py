"""A CSV as numbers of its lines, and a map that reads and parses them: a rank does that for its own rows.

`tf.io.decode_csv` makes of a line what `CsvDataset` makes of it, to the bit, where a record is a line: no line end
lies inside quotes, and no line is blank or ends with CR alone. So files are looked through once (`LineIndex`). Where
they have very many lines every rank reads all of them, and parses its own. A damaged field is the same error, raised
at the batch that it is in and not where the shuffle reads it.

Relies on (TensorFlow 2.16 to 2.21, private): of `tensorflow.python.data.experimental.ops.readers` the names
`CsvDataset`, `core_readers`, `_maybe_shuffle_and_repeat` and `_get_file_names`, which `make_csv_dataset_v2` looks up
when it runs; attributes of a `CsvDataset`. Where one is gone every rank parses all lines. Public: `make_csv_dataset`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import mmap
import os
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.patches.common import wrapping
from matex_tf.patches.division import file_index
from matex_tf.patches.division.file_index import Unfit
from matex_tf.patches.sources import source_sharding
from matex_tf.patches.sources.reasons import NOTHING, Reason, Why

#: On a `CsvDataset`: what `lines_of` gives.
_AS_LINES = "_matex_as_lines"

_NAMES = ("CsvDataset", "core_readers", "_maybe_shuffle_and_repeat", "_get_file_names", "make_csv_dataset_v2")
_READERS = "tensorflow.python.data.experimental.ops.readers"
_BLOCK_BYTES = 8 << 20
_LF, _QUOTE = b'\n"'


def install(module: ModuleType) -> None:
    """Patch tensorflow: `tf.data.experimental.make_csv_dataset`."""
    readers = importlib.import_module(_READERS)
    if any(not hasattr(readers, name) for name in _NAMES):
        return
    original = readers.make_csv_dataset_v2

    @functools.wraps(original)
    def make_csv_dataset(*args: Any, **kwargs: Any) -> Any:
        if wrapping.is_aside() or wrapping.alone() or settings.current().data != "exact":
            return original(*args, **kwargs)
        if not source_sharding.is_script_at_work():
            return original(*args, **kwargs)
        return _make(readers, original, args, kwargs)

    for place in (readers, module.data.experimental):
        for name in ("make_csv_dataset", "make_csv_dataset_v2"):
            if getattr(place, name, None) is original:
                setattr(place, name, make_csv_dataset)


def _make(readers: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """`make_csv_dataset`, with the parsing behind the reading."""
    try:
        asked = inspect.signature(original).bind(*args, **kwargs)
        asked.apply_defaults()
        given = asked.arguments
        files = readers._get_file_names(given["file_pattern"], False)
    except (TypeError, ValueError):
        return original(*args, **kwargs)  # which says what is wrong
    why, index = "", None
    if given["ignore_errors"]:
        why = "it leaves out lines that it cannot parse (ignore_errors), and so has to parse all of them"
    elif given["sloppy"]:
        why = "its order is not fixed (sloppy)"
    elif given["compression_type"]:
        why = "its files are compressed"
    else:
        try:
            index = LineIndex(files, given["use_quote_delim"], given["header"])
        except file_index.Unfit as error:
            why = str(error)
    parsing = readers._maybe_shuffle_and_repeat
    decoders: list[Callable[[Any], Any]] = []

    def lines(filename: Any, **options: Any) -> Any:
        options.pop("compression_type", None)
        header = options.pop("header")
        decoders.append(decoder(**options))
        return _of_file(index, filename, header)

    def parsed(dataset: Any, *rest: Any) -> Any:
        if why:
            setattr(dataset, file_index.KEPT, Reason.CSV(function="make_csv_dataset", why=why))
            return parsing(dataset, *rest)
        return parsing(mapped(dataset, decoders[-1], index), *rest)

    interleaved = readers.core_readers.ParallelInterleaveDataset

    def in_order(dataset: Any, read: Callable[[Any], Any], cycle_length: Any, **options: Any) -> Any:
        if cycle_length == 1:  # one file after the other, without a thread that hands on each line
            return dataset.flat_map(read)
        return interleaved(dataset, read, cycle_length=cycle_length, **options)

    changed: dict[str, Any] = {"_maybe_shuffle_and_repeat": parsed}
    if not why:
        changed |= {"CsvDataset": lines, "core_readers": SimpleNamespace(ParallelInterleaveDataset=in_order)}
    with mock.patch.multiple(readers, **changed):
        return original(*args, **kwargs)


def lines_of(dataset: Any) -> tuple[Any, Why]:
    """A `CsvDataset` as a map of lines; None, and why there is none, in words, where a record is not just a line.

    Raises:
        AttributeError: it is unlike what is known of it.
    """
    found = getattr(dataset, _AS_LINES, None)
    if found is None:
        found = _as_lines(dataset)
        setattr(dataset, _AS_LINES, found)
    return found


def _as_lines(dataset: Any) -> tuple[Any, Why]:
    header, quoted = bool(dataset._header.numpy()), bool(dataset._use_quote_delim.numpy())
    files = np.ravel(dataset._filenames.numpy()).tolist()
    why, index = "", None
    if dataset._compression_type.numpy():
        why = "its files are compressed"
    elif dataset._exclude_cols.numpy().size:
        why = "columns are left out (exclude_cols)"
    else:
        try:
            index = LineIndex(files, quoted, header)
        except file_index.Unfit as error:
            why = str(error)
    if index is None:
        return None, Reason.CSV(function="CsvDataset", why=why)
    columns = dataset._select_cols.numpy().tolist() or None
    delimiter, missing = dataset._field_delim.numpy().decode(), dataset._na_value.numpy().decode()
    with source_sharding.paused():
        if index.is_kept:
            lines = index.numbers()
        else:
            read = tf.autograph.experimental.do_not_convert(lambda file: _of_file(index, file, header))
            lines = tf.data.Dataset.from_tensor_slices(files).flat_map(read)
        return mapped(lines, decoder(dataset._record_defaults, delimiter, quoted, missing, columns), index), NOTHING


def _of_file(index: LineIndex | None, file: Any, header: bool) -> Any:
    """The lines of a file, or their numbers where it is remembered where they begin."""
    if index is not None and index.is_kept:
        return index.numbers(file)
    return tf.data.TextLineDataset(file).skip(int(header))


def decoder(
    record_defaults: Sequence[Any], field_delim: str, use_quote_delim: bool, na_value: str, select_cols: Any
) -> Callable[[Any], Any]:
    """What makes columns of a line, or of a vector of lines; arguments are those of `CsvDataset`."""

    @tf.autograph.experimental.do_not_convert
    def decode(lines: Any) -> Any:
        defaults = [tf.constant([], one) if isinstance(one, tf.DType) else one for one in record_defaults]
        return tuple(tf.io.decode_csv(lines, defaults, field_delim, use_quote_delim, na_value, select_cols))

    return decode


def mapped(lines: Any, decode: Callable[[Any], Any], index: LineIndex | None) -> Any:
    """Columns of lines, or of numbers of lines; a map that can be done with many elements at once."""
    if index is None or not index.is_kept:
        return file_index.mapped(lines, decode, decode)
    of_numbers = index.of_numbers
    return file_index.mapped(
        lines,
        lambda number: decode(of_numbers(number[None])[0]),
        lambda numbers: decode(of_numbers(numbers)),
    )


class LineIndex(file_index.FileIndex):
    """The lines of some files, numbered through all of them, without their first lines where those are headers.

    Attributes:
        is_kept: whether it is remembered where lines begin; not where there are very many.
    """

    pieces = "lines"

    def __init__(self, files: Sequence[Any], quoted: bool, header: bool):
        """Look through the files.

        Args:
            files: names of them.
            quoted: whether fields may be in quotes.
            header: whether they begin with names.

        Raises:
            Unfit: records are not just lines.
        """
        super().__init__([_look_through(os.fsdecode(file), quoted, header) for file in files])
        self.is_kept = int(self.firsts[-1]) <= file_index.MOST
        if not self.is_kept:
            self._files = []

    def _held(self, piece: bytes, path: str, low: int) -> bytes:
        return piece.rstrip(b"\r\n")


def _look_through(path: str, quoted: bool, header: bool) -> file_index.File:
    return file_index.look_through(path, functools.partial(_bounds, path, quoted, header))


def _bounds(path: str, quoted: bool, header: bool, handle: int, size: int) -> np.ndarray:
    bounds = np.zeros(1, np.int64)
    if size:
        with mmap.mmap(handle, size, access=mmap.ACCESS_READ) as text:
            bounds = _ends(path, text, size, quoted)
    elif header:
        raise Unfit(f"{path} is empty")
    return bounds[int(header) :]


def _ends(path: str, text: mmap.mmap, size: int, quoted: bool) -> np.ndarray:
    ends, quotes, low, before = [np.zeros(1, np.int64)], 0, 0, b"\n"
    while low < size:
        high = min(low + _BLOCK_BYTES, size)
        while high < size and text[high - 1 : high] in (b"\r", b"\n"):
            high += 1
        block = text[low:high]
        begin = before + block[:2]
        if b"\n\n" in block or b"\n\r\n" in block or begin.startswith((b"\n\n", b"\n\r\n")):
            raise Unfit(f"{path} has blank lines")
        if b"\r" in block and block.count(b"\r") != block.count(b"\r\n"):
            raise Unfit(f"{path} has lines that end with CR alone")
        data = np.frombuffer(block, np.uint8)
        here = np.flatnonzero(data == _LF)
        if quoted and (quotes or b'"' in block):
            places = np.flatnonzero(data == _QUOTE)
            if ((np.searchsorted(places, here) + quotes) % 2).any():
                raise Unfit(f"{path} has line ends inside of quotes")
            quotes = (quotes + len(places)) % 2
        ends.append(here + (low + 1))
        before, low = block[-1:], high
    if before != b"\n":
        ends.append(np.array([size]))
    return np.concatenate(ends)
