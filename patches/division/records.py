"""TFRecord files as numbers of their records, and a map that reads them: a rank does that for its own rows.

Without it every rank reads all records, as `shard()` in a script does. For that files are gone through once, from the
head of a record to the next. It pays where records are large: of small ones reading costs little beside the rest.
`flat_map` and `interleave` of files count too, where their function makes a `TFRecordDataset` and nothing more.

Relies on (TensorFlow 2.16 to 2.21, private): `_filenames`, `_compression_type` and `_num_parallel_reads` of a
`TFRecordDataset`; `_input_dataset` and `_tensors` of what names its files; `_map_func`, `_cycle_length`,
`_block_length` and `_num_parallel_calls` of an interleave; the ops by which a `TFRecordDataset` is made;
`_create_dataset_reader` of `tensorflow.python.data.ops.readers`. Where one is gone every rank reads all records.
"""

from __future__ import annotations

import functools
import importlib
import os
import struct
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from tensorflow.python.data.ops import readers

from matex_tf.errors import DataError
from matex_tf.patches.division import file_index
from matex_tf.patches.division.file_index import Unfit
from matex_tf.patches.sources import pipeline_ownership, source_sharding
from matex_tf.patches.sources.reasons import NOTHING, Reason, Why

#: Bytes of a record, on average over the first ones of a file, from which on a rank reads its own ones alone.
_LARGE, _FIRST = 4096, 256
#: Seconds for going through all files, on a file system where that is slow.
_SECONDS = 5.0
#: A record: bytes of data and the checksum of that number, the data, and their checksum.
_HEAD, _TAIL = struct.Struct("<QI"), struct.Struct("<I")
_NUMBER = 8
#: Classes of datasets that `numbered` takes.
KINDS = ("TFRecordDatasetV2", "_FlatMapDataset", "_InterleaveDataset", "_ParallelInterleaveDataset")
#: What may stand between the names of files and a `TFRecordDataset`.
_OF_NAMES = ("_ShuffleDataset", "_RepeatDataset", "_TakeDataset", "_SkipDataset", "_ShardDataset", "_OptionsDataset")
#: The ops of a function that makes a `TFRecordDataset` of its argument, and does nothing more.
_READING = ("Placeholder", "Const", "Reshape", "TensorSliceDataset", "FlatMapDataset", "Identity", "NoOp")
_RECORDS = ("TFRecordDataset", "TFRecordDatasetV2")
#: On a dataset: what `numbered` gives.
_NUMBERED = "_matex_numbered"


def numbered(dataset: Any) -> tuple[Any, Why]:
    """A `TFRecordDataset`, or an interleave of some, as a map of numbers.

    Returns:
        None where every rank reads all records or it reads something else; and why, where that is news.

    Raises:
        AttributeError: it is unlike what is known of it.
    """
    found: tuple[Any, Why] | None = getattr(dataset, _NUMBERED, None)
    if found is None:
        try:
            found = _numbered(dataset), NOTHING
        except Unfit as error:
            found = None, Reason.RECORDS(why=error) if error.args[0] else NOTHING
        setattr(dataset, _NUMBERED, found)
    return found


def why_all_are_read(dataset: Any) -> Why:
    """What `numbered` has found of it, in words, where that has looked; it is not looked into for this."""
    why: Why = getattr(dataset, _NUMBERED, (None, NOTHING))[1]
    return why


def _numbered(dataset: Any) -> Any:
    if hasattr(dataset, "_filenames"):
        kind, names = dataset._compression_type, dataset._filenames
        if kind is not None and (not isinstance(kind, str) or kind):
            raise Unfit("its files are compressed")
        read = functools.partial(_in_files, dataset)
    else:
        if not _reads(dataset._map_func.function):
            raise Unfit("")
        names, read = dataset._input_dataset, functools.partial(_of_files, dataset)
    index = RecordIndex(_files(names))
    with source_sharding.paused():
        numbers = read(index.numbers)
        return file_index.mapped(numbers, lambda number: index.of_numbers(number[None])[0], index.of_numbers)


def _in_files(dataset: Any, numbers: Callable[[Any], Any]) -> Any:
    """What a `TFRecordDataset` does, with numbers of records."""
    return readers._create_dataset_reader(numbers, dataset._filenames, dataset._num_parallel_reads)


def _of_files(dataset: Any, numbers: Callable[[Any], Any]) -> Any:
    """What an interleave or a flat map does, with numbers of records. An order that is free becomes a fixed one."""
    names = dataset._input_dataset
    if not hasattr(dataset, "_cycle_length"):
        return names.flat_map(numbers)
    options: dict[str, Any] = {}
    if hasattr(dataset, "_num_parallel_calls"):
        options = {"num_parallel_calls": int(dataset._num_parallel_calls), "deterministic": True}
    return names.interleave(numbers, int(dataset._cycle_length), int(dataset._block_length), **options)


def _reads(function: Any) -> bool:
    """Whether a function makes a `TFRecordDataset` of its argument, which is not compressed, and does nothing more."""
    nodes = pipeline_ownership.ops_of(function.graph)
    words = [node.attr["value"].tensor for node in nodes if node.op == "Const"]
    return (
        sum(node.op in _RECORDS for node in nodes) == 1
        and all(node.op in _READING or node.op in _RECORDS for node in nodes)
        and not any(any(word.string_val) for word in words)
    )


def _files(names: Any) -> list[str]:
    """The names of files that a dataset yields.

    Raises:
        Unfit: they are not known beforehand.
    """
    while type(names).__name__ in _OF_NAMES:
        names = names._input_dataset
    if type(names).__name__ != "_TensorSliceDataset" or len(names._tensors) != 1:
        raise Unfit("the names of its files are not known beforehand")
    return sorted({os.fsdecode(name) for name in names._tensors[0].numpy().ravel().tolist()})


class RecordIndex(file_index.FileIndex):
    """The records of some files, numbered through all of them."""

    pieces = "records"

    def __init__(self, files: Sequence[str]):
        """Go through the files.

        Raises:
            Unfit: records are small, damaged, or very many; or that takes long.
        """
        self._checksum = _checksum_of(_google_crc32c())
        until = time.monotonic() + _SECONDS
        find = functools.partial(self._bounds, until)
        super().__init__([file_index.look_through(file, functools.partial(find, file)) for file in files])

    def _bounds(self, until: float, path: str, handle: int, size: int) -> np.ndarray:
        bounds, low = [0], 0
        while low < size:
            head = os.pread(handle, _HEAD.size, low)
            if len(head) < _HEAD.size:
                raise Unfit(f"{path} ends within a record")
            length, checksum = _HEAD.unpack(head)
            if self._checksum(head[:_NUMBER]) != checksum:
                raise Unfit(f"the record that begins at byte {low} of {path} is damaged")
            low += _HEAD.size + length + _TAIL.size
            bounds.append(low)
            if len(bounds) % _FIRST == 0:
                _look_up(path, bounds, until)
        if low > size:
            raise Unfit(f"{path} ends within a record")
        if low < _LARGE * (len(bounds) - 1):
            raise Unfit("")
        return np.array(bounds, np.int64)

    def _held(self, piece: bytes, path: str, low: int) -> bytes:
        data = piece[_HEAD.size : -_TAIL.size]
        if self._checksum(data) != _TAIL.unpack(piece[-_TAIL.size :])[0]:
            raise DataError(
                f"{path}: the record that begins at byte {low} is damaged (its checksum is another): write the file "
                "again, or leave such records out with ignore_errors()."
            )
        return data


def _look_up(path: str, bounds: list[int], until: float) -> None:
    """Raises Unfit where it is better to stop."""
    if bounds[-1] < _LARGE * len(bounds) and len(bounds) == _FIRST:
        raise Unfit("")
    if len(bounds) > file_index.MOST:
        raise Unfit(f"{path} has more than {file_index.MOST:,} of them")
    if time.monotonic() > until:
        raise Unfit(f"finding where they begin takes more than {_SECONDS:g} s")


def _google_crc32c() -> ModuleType:
    """Raises Unfit where it is not installed, or slow."""
    try:
        found = importlib.import_module("google_crc32c")
    except ImportError:
        raise Unfit("google-crc32c is not installed (pip install google-crc32c)") from None
    if found.implementation != "c":
        raise Unfit("google-crc32c has no compiled part here")
    return found


def _checksum_of(crc32c: ModuleType) -> Callable[[bytes], int]:
    """The masked CRC-32C of TFRecord files."""
    value = crc32c.value

    def checksum(data: bytes) -> int:
        crc: int = value(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    return checksum
