"""Damage files byte by byte and read them: in a process of its own, since what reads them may crash or hang.

Prints a line of JSON for every read that ended in neither rows nor a DataError, or in other rows than a cut file can
have, and at the end the counts. A read that takes too long ends the process with the stack of where it was.
"""

from __future__ import annotations

import collections
import faulthandler
import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

import array_files
import numpy as np

from matex_tf.core.world import World
from matex_tf.errors import DataError
from matex_tf.readers.formats import registry
from matex_tf.readers.tables.table import ReadOptions

LONGEST_SECONDS = 15


def main(kind: str, seconds: float, seed: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    random_ = random.Random(seed)
    directory = Path(tempfile.mkdtemp(dir=sys.argv[4]))
    samples = getattr(array_files, kind)(directory)
    counts: collections.Counter[str] = collections.Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sample = random_.choice(samples)
        path = Path(random_.choice(sample.paths))
        whole = path.read_bytes()
        path.unlink()  # HDF5 knows files by inode, and one that it failed to open may still be open to it
        cut = random_.random() < 0.3
        if cut:
            place = random_.randrange(len(whole))
            path.write_bytes(whole[:place])
        else:  # headers matter more than what follows
            place = random_.randrange(min(len(whole), random_.choice([300, 2000, len(whole)])))
            damaged = bytearray(whole)
            damaged[place] ^= random_.randrange(1, 256)
            path.write_bytes(damaged)
        what = f"{sample.name}, {'cut at' if cut else 'flipped'} {place} of {len(whole)}"
        faulthandler.dump_traceback_later(LONGEST_SECONDS, exit=True)
        try:
            registry.by_content(str(path))
        except DataError:
            counts["of no format"] += 1
        try:
            table = registry.open_table(
                sample.paths, format_of(kind, sample.name), ReadOptions(**sample.wanted), World()
            )
            x, _ = table.read(0, table.rows)
            counts["rows"] += 1
            if cut and not same(x, sample.x):
                print(json.dumps(f"{what}: other rows"))
        except DataError:
            counts["refused"] += 1
        except BaseException as error:
            print(json.dumps(f"{what}: {type(error).__name__}: {error}"))
        faulthandler.cancel_dump_traceback_later()
        path.write_bytes(whole)
    print(json.dumps(counts))


def format_of(kind: str, name: str) -> str:
    """Of the files of a sample, whatever they look like when they are damaged."""
    return name.split()[0] if kind == "mnist_cifar" else kind


def same(got: object, expected: object) -> bool:
    """Whether inputs are those that were written."""
    if isinstance(expected, tuple):
        return isinstance(got, tuple) and all(map(same, got, expected))
    return np.array_equal(got, expected, equal_nan=np.asarray(expected).dtype.kind == "f")  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
