"""idx files, in which MNIST comes: a file of images and one of labels, packed by gzip or not."""

from __future__ import annotations

import builtins
import functools
import gzip
import os
from collections.abc import Sequence
from typing import IO, cast

import numpy as np

from matex_tf.core.world import World
from matex_tf.errors import DataError, quoted
from matex_tf.readers.tables.arrays import ArrayTable, check_plausible, data_errors, open_each
from matex_tf.readers.tables.format import Format
from matex_tf.readers.tables.raw import Place, RawFile, check_whole, compare_length
from matex_tf.readers.tables.table import FileStamp, ReadOptions, Table

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

_PARTS = {"train": "train", "test": "t10k"}
_GZIP = b"\x1f\x8b"


def open(paths: Sequence[str], wanted: ReadOptions, ranks: World) -> Table:
    """Open idx files of inputs as one table, each with its file of labels. Every rank calls it.

    The labels of `train-images-idx3-ubyte` are in `train-labels-idx1-ubyte` beside it, also with a dot for the second
    hyphen, each with or without `.gz`; a file that is not called "images" has no labels. `wanted.y` can name them: a
    path, seen from the directory of the inputs, or False. Files of labels among `paths` that belong to others
    of them are not inputs.

    A packed file is unpacked up to the last row wanted. That it is whole is found by one rank of each
    node, which unpacks all of it.

    Raises:
        DataError: on every rank: a file cannot be read, is too short or too long, or has not what is wanted.
    """
    images = {_plain(os.path.abspath(path)) for path in paths if "images" in os.path.basename(path)}
    belong = {_labels_name(path) for path in images}
    inputs = [path for path in paths if _plain(os.path.abspath(path)) not in belong] or list(paths)
    table = open_each(inputs, wanted, ranks, "open idx files", _open_one)
    check_whole(table, ranks)
    return table


def guess_can_open(path: str, head: bytes) -> bool:
    """Whether it begins with two zeros and the number of a type."""
    return head[:2] == b"\0\0" and head[2:3] != b"" and head[2] in TYPES


FORMAT = Format("idx", guess_can_open, open, ("mnist",))


def find(directory: str, part: str) -> tuple[str, str]:
    """The files of MNIST's images and labels in a directory.

    Args:
        directory: where they are.
        part: "train" or "test".

    Raises:
        DataError: they are not there; the names that were looked for are listed. Nothing is ever downloaded.
    """
    if part not in _PARTS:
        raise DataError(f"MNIST has the parts train and test, and no {quoted(part)}.")
    if not os.path.isdir(directory):
        raise DataError(f"{directory} is not a directory: MNIST's files are looked for in it, and never downloaded.")
    found = []
    for name in (f"{_PARTS[part]}-images-idx3-ubyte", f"{_PARTS[part]}-labels-idx1-ubyte"):
        names = _variants(name)
        there = [os.path.join(directory, one) for one in names if os.path.isfile(os.path.join(directory, one))]
        if not there:
            raise DataError(f"{directory} has none of {', '.join(names)}. Nothing is downloaded: put the file there.")
        found.append(there[0])
    return found[0], found[1]


def _plain(path: str) -> str:
    """A file's name as MNIST's own site spells it: no ending .gz, a hyphen before idx."""
    return path.removesuffix(".gz").replace(".idx", "-idx")


def _labels_name(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, name.replace("images", "labels").replace("idx3", "idx1"))


def _variants(name: str) -> list[str]:
    dotted = name.replace("-idx", ".idx")
    return list(dict.fromkeys([name, f"{name}.gz", dotted, f"{dotted}.gz"]))


def _open_one(path: str, wanted: ReadOptions) -> Table:
    if wanted.x is not None:
        raise DataError(f"{path} holds one array without a name: x={quoted(wanted.x)} is not in it.")
    labels = _labels_beside(path, wanted)
    files = [FileStamp(one) for one in (path, labels) if one]
    names = [os.path.basename(one.path) for one in files]
    if len(set(names)) < len(names):
        names = [one.path for one in files]
    places = {name: _place(one) for name, one in zip(names, files, strict=True)}
    return ArrayTable(RawFile(path, "file", files, places, (names[0], names[1] if labels else None)), wanted)


def _labels_beside(path: str, wanted: ReadOptions) -> str | None:
    directory, name = os.path.split(path)
    if wanted.y is False:
        return None
    if wanted.y is not None:
        if not isinstance(wanted.y, (str, os.PathLike)):
            raise DataError(
                f"{path} is an idx file: y is the path of another one, or False, and not {quoted(wanted.y)}."
            )
        return os.path.join(directory, os.fspath(wanted.y))
    if "images" not in name:
        return None
    names = _variants(_labels_name(_plain(name)))
    for one in names:
        if os.path.exists(os.path.join(directory, one)):
            return os.path.join(directory, one)
    raise DataError(
        f"{path} is called as images are, and its labels are not beside it ({', '.join(names)}): name them with y=, "
        "or say y=False."
    )


def _place(watched: FileStamp) -> Place:
    """The array in an idx file."""
    path = watched.path
    with data_errors(path, "read as idx", [watched]):
        with builtins.open(path, "rb") as file:
            packed = file.read(2) == _GZIP
        unpack = functools.partial(_unpacked, path) if packed else None
        with unpack() if unpack else builtins.open(path, "rb") as file:
            start = file.read(4)
            if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in TYPES or start[3] == 0:
                raise DataError(f"{path} is not an idx file: it starts with {start!r}.")
            sizes = file.read(4 * start[3])
            if len(sizes) < 4 * start[3]:
                raise DataError(f"{path} is not whole: it ends in its header.")
        shape = tuple(map(int, np.frombuffer(sizes, ">u4")))
        if len(shape) > 32:
            raise DataError(f"{path} is not an idx file: it would have {len(shape)} dimensions.")
        place = Place(path, 4 + len(sizes), shape, np.dtype(TYPES[start[2]]), unpack=unpack, packed=watched.bytes)
        if not packed:
            compare_length(place, watched.bytes)
        check_plausible(path, "file", place.column(os.path.basename(path)), watched.bytes)
    return place


def _unpacked(path: str) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb"))
