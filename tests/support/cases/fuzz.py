"""Damaged files, read by several ranks."""

from __future__ import annotations

from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.readers import DataSet
from matex_tf.readers.tables.table import all_or_none


def read(files):
    """This rank's rows of each file, or the message with which it refuses it."""
    results = []
    for path, format in files:
        try:
            shard = DataSet.open(path, format)
            with all_or_none(world.current(), "read the data"):
                raw = shard.load()
            results.append(raw)
        except MatexError as error:
            results.append(str(error))
    return results
