"""Which files a path, a pattern or the name of a data set stands for; the same on every rank."""

from __future__ import annotations

import glob
import os
from typing import Any

from matex_tf.core.world import World
from matex_tf.errors import DataError, listed
from matex_tf.readers.formats import registry
from matex_tf.readers.places import addresses
from matex_tf.readers.tables.table import all_or_none

#: Where MaTEx has the files that it knows by name.
DIRECTORIES = {"MNIST": "MNIST_data", "CIFAR10": "CIFAR_data", "CIFAR100": "CIFAR_data"}


def expand(path: Any, ranks: World) -> list[str]:
    """The files that a path, a pattern, a directory or a list of these stands for; the same on every rank.

    Args:
        path: a string, a `Path` or an address, a pattern with `*`, `?` or `[`, a directory, or a sequence of these.
        ranks: who reads; every rank must call it.

    Raises:
        DataError: on every rank: there are none, or other ones on some rank.
    """
    found: list[str] = []
    with all_or_none(ranks, "find the files of the data"):
        for one in [path] if isinstance(path, (str, os.PathLike)) else list(path):
            found += _expand_one(os.fspath(one))
        if not found:
            raise DataError("there are no files in an empty list of paths.")
    everyone = ranks.allgather(found, "compare the files of the data")
    if any(other != everyone[0] for other in everyone):
        odd = next(rank for rank, other in enumerate(everyone) if other != everyone[0])
        missing = sorted(set(everyone[0]) ^ set(everyone[odd]))
        raise DataError(
            f"rank {odd} (host {ranks.hosts[odd]}) finds other files than rank 0 for {path}: "
            f"{listed(missing) or 'another order'}."
        )
    return found


def _expand_one(path: str) -> list[str]:
    if registry.of_store(path) is not None:
        return [path]
    if addresses.is_address(path):
        return addresses.expand(path)
    if os.path.isdir(path):
        names = sorted(name for name in os.listdir(path) if not name.startswith((".", "_")))
        files = [os.path.join(path, name) for name in names if os.path.isfile(os.path.join(path, name))]
        if not files:
            raise DataError(f"{path} is a directory without files{_deeper(path, names)}.")
        return files
    if os.path.lexists(path) or not glob.has_magic(path):
        return [path]
    files = sorted(filter(os.path.isfile, glob.glob(path, recursive=True)))
    if not files:
        raise DataError(f"no file matches {path}.")
    return files


def _deeper(path: str, names: list[str]) -> str:
    """What to do with a data set of many files in directories of a directory."""
    if not names:
        return ""
    values = sorted({name.partition("=")[0] for name in names if "=" in name})
    lost = f" ({listed(values)} of their names is no column then)" if values else ""
    return f": name those of its directories by a pattern, {os.path.join(path, '**', '*.*')}{lost}"


def files_of(name: str, part: str, file: Any, directory: Any, ranks: World) -> list[str]:
    """The files of one part of a named data set; none where it has no such part.

    Args:
        name: of the data set, one of `dataset.NAMES`.
        part: "train", "validation" or "test".
        file: the file of this part that the script names, seen from `directory`; None finds it.
        directory: where the files lie; None: the usual one of the data set, or the current one.
        ranks: who reads; every rank must call it.
    """
    if file is not None and addresses.is_address(os.fspath(file)):
        return expand(file, ranks)
    if file is not None:
        return expand(os.path.join(directory or ".", file), ranks)
    if part == "train" and name == "CSV" and directory is not None:
        return expand(_files_below(directory), ranks)
    if part == "validation" or name not in DIRECTORIES:
        return []
    found: list[str] = []
    with all_or_none(ranks, "find the files of the data"):
        usual = DIRECTORIES[name]
        place = os.fspath(directory) if directory is not None else usual if os.path.isdir(usual) else "."
        if name == "MNIST":
            from matex_tf.readers.formats import idx

            found = [idx.find(place, part)[0]]  # its labels are found beside it
        else:
            from matex_tf.readers.formats import cifar

            found = cifar.find(place, part, int(name.removeprefix("CIFAR")))
    return found


def _files_below(directory: Any) -> list[str]:
    """All files of a directory and of those in it, by name."""
    names = ((place, name) for place, _, names in os.walk(directory) for name in names if not name.startswith("."))
    return sorted(os.path.join(place, name) for place, name in names) or [os.fspath(directory)]
