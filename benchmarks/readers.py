"""Bytes read from files and seconds, a rank: this project's readers beside the plain libraries.

Writes one file of each format, then reads it on 1, 2 and 4 ranks: with `DataSet.open`, where each rank gets its part,
and with pandas, h5py or netCDF4, where each rank gets the whole, as a script without this project would. Bytes are
those that the process asked the system for (rchar of /proc/self/io), less what starting Python took.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import launching, tables

COLUMNS = 28
FORMATS = {"csv": "data.csv", "hdf5": "data.h5", "netcdf": "data.nc"}
LIBRARIES = {"csv": "pandas", "hdf5": "h5py", "netcdf": "netCDF4"}


def write(kind: str, path: Path, size: int) -> int:
    """Write a file of some `size` bytes; returns its rows."""
    random = np.random.RandomState(7)
    block = random.normal(size=(20000, COLUMNS)).astype("float32")
    if kind == "csv":
        import pandas as pd

        frame = pd.DataFrame(block.round(5), columns=[f"x{i}" for i in range(COLUMNS)])
        frame["label"] = random.randint(0, 2, len(block))
        text = frame.to_csv(index=False)
        head, body = text[: text.index("\n") + 1], text[text.index("\n") + 1 :]
        times = max(1, size // len(body))
        with path.open("w") as file:
            file.write(head)
            for _ in range(times):
                file.write(body)
        return times * len(block)
    times = max(1, size // (block.nbytes + 8 * len(block)))
    rows = times * len(block)
    if kind == "hdf5":
        import h5py

        with h5py.File(path, "w") as file:
            x = file.create_dataset("x", (rows, COLUMNS), "f4")
            y = file.create_dataset("y", (rows,), "i8")
            for i in range(times):
                x[i * len(block) : (i + 1) * len(block)] = block
                y[i * len(block) : (i + 1) * len(block)] = np.arange(len(block)) % 2
        return rows
    import netCDF4

    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_DATA") as file:
        file.createDimension("row", rows)
        file.createDimension("column", COLUMNS)
        x = file.createVariable("x", "f4", ("row", "column"))
        y = file.createVariable("y", "i8", ("row",))
        for i in range(times):
            x[i * len(block) : (i + 1) * len(block)] = block
            y[i * len(block) : (i + 1) * len(block)] = np.arange(len(block)) % 2
    return rows


def read_part(kind: str, path: str) -> int:
    """This rank's part, by this project; returns its rows."""
    from matex_tf import DataSet

    x, y = DataSet.open(path, y="label" if kind == "csv" else "y")
    assert len(x) == len(y)
    return len(x)


def read_whole(kind: str, path: str) -> int:
    """The whole, by the plain library; returns its rows."""
    if kind == "csv":
        import pandas as pd

        frame = pd.read_csv(path)
        return len(frame[[f"x{i}" for i in range(COLUMNS)]].to_numpy("float32"))
    if kind == "hdf5":
        import h5py

        with h5py.File(path) as file:
            return len(file["x"][:]) + 0 * len(file["y"][:])
    import netCDF4

    with netCDF4.Dataset(path) as file:
        return len(file["x"][:]) + 0 * len(file["y"][:])


def bytes_read() -> int:
    """What this process has read from files so far."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def rank_main(kind: str, path: str, how: str, repeats: int) -> None:
    """One rank: reads the file a few times, and lets rank 0 print what all took."""
    from matex_tf.core import world

    ranks = world.init()
    read = read_part if how == "matex_tf" else read_whole
    for module in (
        "pandas",
        "h5py",
        "netCDF4",
        "matex_tf.readers.formats.csv.table",
        "matex_tf.readers.formats.netcdf.table",
    ):
        __import__(module)
    runs = []
    for _ in range(repeats):
        ranks.barrier("start to read")
        begin, before = time.perf_counter(), bytes_read()
        rows = read(kind, path)
        runs.append((time.perf_counter() - begin, bytes_read() - before, rows))
    everyone = ranks.allgather(runs, "compare readings")
    if ranks.rank == 0:
        best = min(range(repeats), key=lambda i: max(rank[i][0] for rank in everyone))
        seconds = sorted(max(rank[i][0] for rank in everyone) for i in range(repeats))
        result = {
            "seconds": seconds[len(seconds) // 2],
            "spread": [seconds[0], seconds[-1]],
            "bytes": max(rank[best][1] for rank in everyone),
            "rows": [rank[best][2] for rank in everyone],
        }
        launching.tell(result)


def measure(kind: str, path: Path, how: str, ranks: int, repeats: int, layers: bool) -> dict[str, Any]:
    """Run one way of reading on some ranks; returns what rank 0 printed."""
    words = [*launching.module("benchmarks.readers", layers), "--as-rank", kind, str(path), how]
    words += ["--repeats", str(repeats)]
    return dict(launching.on_ranks(ranks, words))


def main() -> None:
    parser = tables.parser("readers", __doc__, layers=True)
    parser.add_argument("--mb", type=int, default=1000, help="size of each file (default 1000)")
    parser.add_argument("--repeats", type=int, default=3, help="readings, of which the median counts (default 3)")
    parser.add_argument("--formats", default="csv,hdf5,netcdf", help="which (default csv,hdf5,netcdf)")
    parser.add_argument("--directory", help="where the files are written (default: a temporary directory)")
    parser.add_argument("--as-rank", nargs=3, help=argparse.SUPPRESS)
    options = tables.parse(parser)
    if options.as_rank:
        kind, path, how = options.as_rank
        rank_main(kind, path, how, options.repeats)
        return
    rows_shown, figures = [], []
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for kind in options.formats.split(","):
            path = Path(directory) / FORMATS[kind]
            rows = write(kind, path, options.mb * 1_000_000)
            size = path.stat().st_size
            for ranks in (1, 2, 4):
                for how in ("matex_tf", LIBRARIES[kind]):
                    figure = measure(kind, path, how, ranks, options.repeats, options.layers)
                    part = figure["bytes"] / size
                    limit = 1 / ranks + 0.05
                    figures.append({"format": kind, "ranks": ranks, "by": how, "part": part, "file": size, **figure})
                    if how == "matex_tf" and sum(figure["rows"]) != rows:
                        sys.exit(f"{kind} on {ranks} ranks: {sum(figure['rows'])} rows of {rows}")
                    cells = [
                        kind, str(ranks), how, f"{figure['seconds']:.2f}", f"{part:.3f}",
                        ("yes" if part <= limit else f"NO: {limit:.2f}") if how == "matex_tf" else "",
                        str(max(figure["rows"])), f"{figure['seconds'] / rows * 1e6:.2f}",
                    ]  # fmt: skip
                    rows_shown.append(cells)
            os.remove(path)
    columns = ["format", "ranks", "by", "seconds", "bytes / file", "1/N + 5 %", "rows a rank", "µs a row"]
    note = f"median of {options.repeats}; bytes of the rank that read most"
    tables.show(f"reading {options.mb} MB", columns, rows_shown, labels=3, less=["seconds", "bytes / file"], note=note)
    tables.keep(figures)


if __name__ == "__main__":
    main()
