"""Files at addresses: each rank reads its part, and counts the bytes."""

from __future__ import annotations

from matex_tf import DataSet
from matex_tf.readers.places import addresses


def share(path, wanted):
    """This rank's rows, and how many bytes it has asked for."""
    asked = []
    fetch = addresses._fetched

    def counted(name, start, stop):
        got = fetch(name, start, stop)
        asked.append(stop - start)
        return got

    addresses._fetched = counted
    try:
        shard = DataSet.open(path, **wanted)
        x, y = shard
        return x, y, sum(asked)
    finally:
        addresses._fetched = fetch
