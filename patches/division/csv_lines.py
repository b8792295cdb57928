"""A CSV as its lines, and a map that parses them: a rank does that for its own rows.

`tf.io.decode_csv` makes of a line what `CsvDataset` makes of it, to the bit, where a record is a line: no line end
lies inside quotes, and no line is blank or ends with CR alone. So files are looked through once. A damaged field is the
same error, raised at the batch that it is in and not where the shuffle reads it.

Relies on (TensorFlow 2.16 to 2.21, private): of `tensorflow.python.data.experimental.ops.readers` the names
`CsvDataset`, `core_readers`, `_maybe_shuffle_and_repeat` and `_get_file_names`, which `make_csv_dataset_v2` looks up
when it runs; attributes of a `CsvDataset`. Where one is gone every rank parses all lines. Public: `make_csv_dataset`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.patches.common import wrapping
from matex_tf.patches.sources import source_sharding
from matex_tf.patches.sources.reasons import NOTHING, Reason, Why
from matex_tf.state import notes


@dataclasses.dataclass(frozen=True)
class Kept(notes.Inside):
    """Of a dataset: why it parses where it reads."""

    why: Why


@dataclasses.dataclass(frozen=True)
class OfVectors(notes.Inside):
    """Of a map: the same function of a vector of elements."""

    function: Any


@dataclasses.dataclass(frozen=True)
class _AsLines(notes.Inside):
    """Of a `CsvDataset`: what `lines_of` gives."""

    found: tuple[Any, Why]


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
    if given["ignore_errors"]:
        why = "it leaves out lines that it cannot parse (ignore_errors), and so has to parse all of them"
    elif given["sloppy"]:
        why = "its order is not fixed (sloppy)"
    elif given["compression_type"]:
        why = "its files are compressed"
    else:
        why = _why_not_lines(files, given["use_quote_delim"], given["header"])
    parsing = readers._maybe_shuffle_and_repeat
    decoders: list[Callable[[Any], Any]] = []

    def lines(filename: Any, **options: Any) -> Any:
        options.pop("compression_type", None)
        header = options.pop("header")
        decoders.append(decoder(**options))
        return tf.data.TextLineDataset(filename).skip(int(header))

    def parsed(dataset: Any, *rest: Any) -> Any:
        if why:
            notes.put(dataset, Kept(Reason.CSV(function="make_csv_dataset", why=why)))
            return parsing(dataset, *rest)
        return parsing(_mapped(dataset, decoders[-1]), *rest)

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
    return notes.of(dataset, _AsLines, lambda: _AsLines(_as_lines(dataset))).found


def _as_lines(dataset: Any) -> tuple[Any, Why]:
    header, quoted = bool(dataset._header.numpy()), bool(dataset._use_quote_delim.numpy())
    files = np.ravel(dataset._filenames.numpy()).tolist()
    if dataset._compression_type.numpy():
        why = "its files are compressed"
    elif dataset._exclude_cols.numpy().size:
        why = "columns are left out (exclude_cols)"
    else:
        why = _why_not_lines(map(os.fsdecode, files), quoted, header)
    if why:
        return None, Reason.CSV(function="CsvDataset", why=why)
    columns = dataset._select_cols.numpy().tolist() or None
    delimiter, missing = dataset._field_delim.numpy().decode(), dataset._na_value.numpy().decode()
    with source_sharding.paused():
        read = tf.autograph.experimental.do_not_convert(lambda file: tf.data.TextLineDataset(file).skip(int(header)))
        lines = tf.data.Dataset.from_tensor_slices(files).flat_map(read)
        return _mapped(lines, decoder(dataset._record_defaults, delimiter, quoted, missing, columns)), NOTHING


def decoder(
    record_defaults: Sequence[Any], field_delim: str, use_quote_delim: bool, na_value: str, select_cols: Any
) -> Callable[[Any], Any]:
    """What makes columns of a line, or of a vector of lines.

    Args:
        record_defaults, field_delim, use_quote_delim, na_value, select_cols: see `tf.data.experimental.CsvDataset`.
    """

    @tf.autograph.experimental.do_not_convert
    def decode(lines: Any) -> Any:
        defaults = [tf.constant([], one) if isinstance(one, tf.DType) else one for one in record_defaults]
        return tuple(tf.io.decode_csv(lines, defaults, field_delim, use_quote_delim, na_value, select_cols))

    return decode


def _mapped(lines: Any, decode: Callable[[Any], Any]) -> Any:
    """Columns of lines; a map that can be done with many elements at once."""
    result = lines.map(decode)
    spec = tf.TensorSpec([None], tf.string)
    notes.put(result, OfVectors(tf.function(decode, autograph=False).get_concrete_function(spec)))
    return result


def _why_not_lines(files: Iterable[str], quoted: bool, header: bool) -> str:
    """Why a record may be more than a line, in words; empty if none is. Args: quoted: fields may be in quotes."""
    return next((why for file in files if (why := _why_not(file, quoted, header))), "")


def _why_not(path: str, quoted: bool, header: bool) -> str:
    if not os.path.isfile(path):
        return f"{path} is no file of a file system that is mounted here"
    try:
        with open(path, "rb") as file:
            if not (size := os.fstat(file.fileno()).st_size):
                return f"{path} is empty" if header else ""
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as text:
                return _in_text(path, text, quoted)
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"


def _in_text(path: str, text: mmap.mmap, quoted: bool) -> str:
    size, quotes, low, before = len(text), 0, 0, b"\n"
    while low < size:
        high = min(low + _BLOCK_BYTES, size)
        while high < size and text[high - 1 : high] in (b"\r", b"\n"):
            high += 1
        block = text[low:high]
        begin = before + block[:2]
        if b"\n\n" in block or b"\n\r\n" in block or begin.startswith((b"\n\n", b"\n\r\n")):
            return f"{path} has blank lines"
        if b"\r" in block and block.count(b"\r") != block.count(b"\r\n"):
            return f"{path} has lines that end with CR alone"
        if quoted and (quotes or b'"' in block):
            data = np.frombuffer(block, np.uint8)
            here, places = np.flatnonzero(data == _LF), np.flatnonzero(data == _QUOTE)
            if ((np.searchsorted(places, here) + quotes) % 2).any():
                return f"{path} has line ends inside of quotes"
            quotes = (quotes + len(places)) % 2
        before, low = block[-1:], high
    return ""
