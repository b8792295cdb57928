"""Files of every format that `DataSet` reads, damaged at random, and the reads of one rank of them.

Run as a program it is the one rank: it takes a line of JSON for each file (path, format), and answers with a line that
says how the read ended. It is started by `OneRank`, which tells a crash, and a read that was given up, from an answer.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import pickle
import random
import select
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from array_files import cifar_content, idx_bytes, rows

from matex_tf import features

#: Seconds of computing after which a read is given up here: the files have a few kilobytes.
SPINNING_SECONDS = 3.0
_LONGEST_SECONDS = 120.0  # for a machine that is busy


@dataclass
class Sample:
    """A file that is damaged.

    Attributes:
        path: what is opened; damaged: what is damaged, in the same directory.
        format: as `DataSet.open` has it.
        covered: the bytes for which the format has checksums: one that is damaged there is refused, or reads as it was.
    """

    path: Path
    damaged: Path
    format: str
    covered: Callable[[bytes], tuple[int, int]] = lambda content: (0, 0)


X, Y = rows("f4", 3), np.arange(53) % 7


def _hdf5(directory: Path, **options: Any) -> Sample:
    path = directory / "some.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=X, **options)
        file["y"] = Y
        file["x"].attrs["units"] = "metres"
        if "fletcher32" in options:
            first, last = (file["x"].id.get_chunk_info(number) for number in (0, file["x"].id.get_num_chunks() - 1))
            span = first.byte_offset, last.byte_offset + last.size
            return Sample(path, path, "hdf5", lambda content: span)
    return Sample(path, path, "hdf5")


def _hdf5_words(directory: Path) -> Sample:
    with h5py.File(directory / "some.h5", "w", libver="latest") as file:
        file["features"] = X
        file.create_dataset("labels", data=[f"word {one}" for one in Y], dtype=h5py.string_dtype())
    return Sample(directory / "some.h5", directory / "some.h5", "hdf5")


def _hdf5_external(directory: Path) -> Sample:
    with h5py.File(directory / "some.h5", "w") as file:
        file.create_dataset("x", shape=X.shape, dtype="f4", external=[(str(directory / "raw"), 0, X.nbytes)])[:] = X
    return Sample(directory / "some.h5", directory / random.Random(str(directory)).choice(["some.h5", "raw"]), "hdf5")


def _hdf5_virtual(directory: Path) -> Sample:
    with h5py.File(directory / "source.h5", "w") as file:
        file["z"] = X
    layout = h5py.VirtualLayout(X.shape, "f4")
    layout[:20] = h5py.VirtualSource("source.h5", "z", X.shape)[:20]
    layout[20:] = h5py.VirtualSource("source.h5", "z", X.shape)[20:]
    with h5py.File(directory / "some.h5", "w", libver="latest") as file:
        file.create_virtual_dataset("x", layout)
    name = random.Random(str(directory)).choice(["some.h5", "source.h5"])
    return Sample(directory / "some.h5", directory / name, "hdf5")


def _netcdf(directory: Path, format: str, **options: Any) -> Sample:
    path = directory / "some.nc"
    with netCDF4.Dataset(path, "w", format=format) as file:
        file.createDimension("row", None)
        file.createDimension("column", 3)
        file.createVariable("features", "f4", ("row", "column"), **options)[:] = X
        file.createVariable("target", "i2", ("row",))[:] = Y
        file.title = "a field"
    return Sample(path, path, "netcdf")


def _parquet(directory: Path) -> Sample:
    table = pa.table({**{f"c{i}": X[:, i] for i in range(3)}, "label": Y})
    path = directory / "some.parquet"
    pq.write_table(table, path, row_group_size=20, write_page_checksum=True)
    return Sample(path, path, "parquet")


def _numpy(directory: Path, name: str) -> Sample:
    path = directory / name
    if name.endswith(".npy"):
        np.save(path, X)
        return Sample(path, path, "numpy")
    (np.savez_compressed if "packed" in name else np.savez)(path, x=X, y=Y)
    return Sample(path, path, "numpy", lambda content: (0, content.index(b"PK\x01\x02")))


def _idx(directory: Path, packed: bool) -> Sample:
    for name, array in {"train-images-idx3-ubyte": X[:, :, None], "train-labels-idx1-ubyte": Y.astype("u1")}.items():
        content = idx_bytes(array)
        (directory / (name + ".gz" * packed)).write_bytes(gzip.compress(content, mtime=0) if packed else content)
    path = directory / ("train-images-idx3-ubyte" + ".gz" * packed)
    return Sample(path, path, "idx", _after_gzip_header if packed else Sample.covered)


def _cifar(directory: Path) -> Sample:
    path = directory / "data_batch_1"
    path.write_bytes(pickle.dumps(cifar_content(5)[0], 2))
    return Sample(path, path, "cifar")


def _csv(directory: Path, packed: bool) -> Sample:
    lines = ['first,"second, quoted",third,label']
    lines += [",".join([*(f"{value:.4g}" for value in row), f'"class {y}"']) for row, y in zip(X, Y, strict=True)]
    content = ("\r\n".join(lines) + "\r\n").encode()
    path = directory / ("some.csv" + ".gz" * packed)
    path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    return Sample(path, path, "csv", _after_gzip_header if packed else Sample.covered)


def _after_gzip_header(content: bytes) -> tuple[int, int]:
    return 10, len(content)


KINDS: dict[str, Callable[[Path], Sample]] = {
    "hdf5 contiguous": _hdf5,
    "hdf5 chunked": lambda directory: _hdf5(directory, chunks=(10, 2), compression="gzip", fletcher32=True),
    "hdf5 words": _hdf5_words,
    "hdf5 external": _hdf5_external,
    "hdf5 virtual": _hdf5_virtual,
    "netcdf 1": lambda directory: _netcdf(directory, "NETCDF3_CLASSIC"),
    "netcdf 5": lambda directory: _netcdf(directory, "NETCDF3_64BIT_DATA"),
    "netcdf 4": lambda directory: _netcdf(directory, "NETCDF4", zlib=True, chunksizes=(10, 2)),
    "parquet": _parquet,
    "npy": lambda directory: _numpy(directory, "some.npy"),
    "npz": lambda directory: _numpy(directory, "some.npz"),
    "npz packed": lambda directory: _numpy(directory, "packed.npz"),
    "idx": lambda directory: _idx(directory, False),
    "idx packed": lambda directory: _idx(directory, True),
    "cifar": _cifar,
    "csv": lambda directory: _csv(directory, False),
    "csv packed": lambda directory: _csv(directory, True),
}


if "parquet" not in features.found():
    del KINDS["parquet"]


def damage(content: bytes, random_: random.Random) -> bytes:
    """Content that is damaged in one of many ways, or in several.

    Most ways leave it whole but for a few bytes; headers, which are short, are hit as often as what comes after them.
    """
    new = bytearray(content)
    size = len(new)

    def place(step: int = 1) -> int:
        most = min(size, random_.choice([64, 512, 4096, size]))
        low = random_.choice([0, 0, size - most])  # Parquet and zip have theirs at the end
        return (low + random_.randrange(most)) // step * step

    for _ in range(random_.choice([1, 1, 1, 2, 5])):
        way = random_.randrange(8)
        at, other = place(8), place(8)
        if way == 0:  # eight bytes change places
            new[at : at + 8], new[other : other + 8] = new[other : other + 8], new[at : at + 8]
        elif way == 1:
            new[place() % len(new)] ^= 1 << random_.randrange(8)
        elif way == 2:
            new[place() % len(new)] = random_.randrange(256)
        elif way == 3:  # a number that is far too large, or nothing, or negative
            width = random_.choice([2, 4, 8])
            number = random_.choice([0, 1, (1 << 8 * width) - 1, 1 << (8 * width - 2), 1 << (4 * width)])
            new[at : at + width] = number.to_bytes(width, random_.choice(["little", "big"]))
        elif way == 4:
            del new[place() :]
        elif way == 5:
            new[at : at + random_.randrange(1, 64)] = b""
        elif way == 6:
            new[at:at] = bytes(random_.randrange(256) for _ in range(random_.randrange(1, 64)))
        else:
            length = random_.randrange(1, 600)
            new[at : at + length] = bytes(len(new[at : at + length]))
        if not new:
            new = bytearray(b"\0")
    return bytes(new)


class OneRank:
    """A process that reads damaged files, by itself; a new one where it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._last = ""  # the format that it has read

    def read(self, path: Path, format: str) -> tuple[str, Any]:
        """How a read ended: "rows" and the arrays, "refused" and the message, "odd" and an exception; or "given up",
        "ended" (a crash, of which a line says what was read) or "crashed", and what was said."""
        if self._process is not None and (code := self._process.poll()) is not None:
            said = self.close()
            # A read may end as it is given up, and the HDF5 library may crash later on what it has damaged in memory.
            expected = "is given up" in said or (code < 0 and self._last in ("hdf5", "netcdf"))
            assert expected, f"ended with code {code} after a file of {self._last}, before {path}: {said[-2000:]}"
        self._last = format
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace"
            )
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps([str(path), format]) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], _LONGEST_SECONDS)[0]:
            self.close()
            return "hung", f"no end after {_LONGEST_SECONDS} s"
        line = process.stdout.readline()
        if line:
            kind, answer = json.loads(line)
            return kind, pickle.loads(base64.b64decode(answer)) if kind == "rows" else answer
        said = self.close()
        if path.name in said and "is given up" in said:
            return "given up", said
        return ("ended" if path.name in said and "when it ended: " in said else "crashed"), said[-2000:]

    def close(self) -> str:
        """End the process, and that which watches it; what they said."""
        if self._process is None:
            return ""
        process, self._process = self._process, None
        process.kill()
        return process.communicate()[1]


def main() -> None:
    """Read each file that is named on standard input."""
    from matex_tf import DataSet
    from matex_tf.errors import MatexError
    from matex_tf.readers.safety import read_watch

    read_watch.SPINNING_SECONDS = SPINNING_SECONDS
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        path, format = json.loads(line)
        try:
            shard = DataSet.open(path, format)
            answer = "rows", base64.b64encode(pickle.dumps((shard.data, shard.labels))).decode()
        except MatexError as error:
            answer = "refused", str(error)
        except BaseException as error:
            answer = "odd", f"{type(error).__name__}: {error}"
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
