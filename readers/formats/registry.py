"""Which format a file has, and the function that opens it. What a format looks like stands in its own file."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from matex_tf.core.world import World
from matex_tf.errors import DataError, listed, quoted
from matex_tf.features import registry
from matex_tf.readers.places import addresses
from matex_tf.readers.tables import packed
from matex_tf.readers.tables.format import Format
from matex_tf.readers.tables.table import FileStamp, ReadOptions, Table, all_or_none

#: The module of each format, whose FORMAT says what it is. A file is shown to them in this order: NetCDF comes before
#: HDF5, since a netCDF-4 file is one of HDF5 too, and CSV last, since it takes all text; those of features come before
#: it. They are imported at the first use of a file; none imports pandas, pyarrow, h5py or netCDF4 before it opens one.
MODULES = [
    "matex_tf.readers.formats.netcdf.table",
    "matex_tf.readers.formats.hdf5.table",
    "matex_tf.readers.formats.npy",
    "matex_tf.readers.formats.idx",
    "matex_tf.readers.formats.cifar",
    "matex_tf.readers.formats.csv.table",
]

#: Formats of a few files beside one another, which are looked for on a disk.
_ON_DISKS = ("idx", "cifar")


def formats() -> list[Format]:
    """All formats, in the order in which a file is shown to them."""
    of_features = [module for feature in registry.found().values() for module in feature.formats]
    return [importlib.import_module(module).FORMAT for module in (*MODULES[:-1], *of_features, MODULES[-1])]


def named(name: str) -> Format:
    """The format that a user means, in any case.

    Raises:
        DataError: there is none of this name.
    """
    by_name = {known: one for one in formats() for known in (one.name, *one.aliases)}
    if name.lower() not in by_name:
        absent = registry.installed_by(f"format={name.lower()}")
        raise DataError(f"{quoted(name)} is not a format{absent}: name one of {', '.join(sorted(by_name))}.")
    return by_name[name.lower()]


def by_content(path: str) -> Format:
    """The format of a file, by what is in it; text that is nothing else is CSV.

    Raises:
        DataError: the file cannot be read, is empty, or is of no format that is known.
    """
    if (whole := of_store(path)) is not None:
        return whole
    FileStamp(path)
    head = packed.head(path)
    for one in formats():
        if one.guess_can_open(path, head):
            return one
    why = packed.advice(head) or "is of no format that is known by its content: name it with format="
    raise DataError(f"{path} {why}.")


def of_store(path: str) -> Format | None:
    """The format that a directory or an address has as a whole; None if it has none."""
    return next((one for one in formats() if one.is_store(path)), None)


def open_object(given: Any, options: ReadOptions, ranks: World) -> Table | None:
    """What a script gives in place of paths as a table; None if no format knows it. Every rank calls it.

    Args:
        given: such as an `xarray.Dataset`.
        options: what is wanted of it.
        ranks: who reads.
    """
    return next((table for one in formats() if (table := one.open_object(given, options, ranks)) is not None), None)


def open_table(paths: Sequence[str], format: str | None, options: ReadOptions, ranks: World) -> Table:
    """Open files as one table. Every rank calls it with the same arguments.

    Args:
        paths: files or addresses.
        format: a name that a `Format` has; None finds it by the content of each file.
        ranks: who reads.

    Raises:
        DataError: on every rank: a file is not there on some rank, has no known format, or has not what is wanted.
    """
    found: Format | None = None
    with all_or_none(ranks, "find the format of the data"):
        each = {path: named(format) if format else by_content(path) for path in paths}
        if len({one.name for one in each.values()}) > 1:
            kinds = listed((f"{path}: {one.name}" for path, one in each.items()), "; ")
            raise DataError(f"files that are read as one table must have one format ({kinds}).")
        far = next((path for path, one in each.items() if one.name in _ON_DISKS and addresses.is_address(path)), None)
        if far:
            raise DataError(f"{far} is {each[far].name}, which is read only from disks: download it first.")
        found = each[paths[0]]
    assert found is not None
    if len(set(ranks.allgather(found.name, "compare the formats of the data"))) > 1:
        raise DataError(f"{paths[0]} has other formats on other ranks: is it the same file on every host?")
    table = found.open(paths, options, ranks)
    table.format = found.name
    return table
