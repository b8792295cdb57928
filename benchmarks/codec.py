"""What encoding and decoding cost, beside a memcpy of the same float32 bytes, in turn, in one process on one core.

Figures are medians over rounds, of seconds in which this process had the core; a ratio is the median of the ratios of
each round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import tables
from matex_tf.exchange.network import codec

#: How many times a memcpy each may take.
LIMITS = {"bf16": 3, "int8": 8, "int4": 12}


def measure(name: str, nbytes: int, rounds: int) -> list[dict[str, Any]]:
    """Time what a codec does with an array of so many bytes of float32."""
    one = codec.create(name)
    values = np.random.default_rng(0).normal(size=nbytes // 4).astype(np.float32)
    target, residual = np.empty_like(values), np.zeros_like(values)
    wire = np.empty(one.nbytes(values.size), np.uint8)
    what: dict[str, Callable[[], None]] = {
        "memcpy": lambda: np.copyto(target, values),
        "encode": lambda: one.encode(values, wire),
        "decode": lambda: one.decode(wire, target),
        "decode and add": lambda: one.add(wire, target),
        "encode with feedback": lambda: one.encode(values, wire, residual),
    }
    repeats = max(1, (1 << 24) // nbytes)  # a small array many times, so that the clock is fine enough
    seconds: dict[str, list[float]] = {name: [] for name in what}
    for _ in range(rounds + 1):
        for doing, work in what.items():
            begin = time.thread_time()
            for _ in range(repeats):
                work()
            seconds[doing].append((time.thread_time() - begin) / repeats)
    copy = seconds["memcpy"][1:]
    figures: list[dict[str, Any]] = []
    for doing in what:
        times = [a / b for a, b in zip(seconds[doing][1:], copy, strict=True)]
        figures.append(
            {
                "codec": name,
                "bytes": nbytes,
                "what": doing,
                "milliseconds": statistics.median(seconds[doing][1:]) * 1e3,
                "times_memcpy": statistics.median(times),
                "spread": [min(times), max(times)],
            }
        )
    return figures


def main() -> None:
    parser = tables.parser("codec", __doc__)
    parser.add_argument("--megabytes", default="1,32,100", help="of float32, with commas between (default 1,32,100)")
    parser.add_argument(
        "--rounds", type=int, default=11, help="rounds that count (default 11), after one that does not"
    )
    options = tables.parse(parser)
    figures = [
        figure
        for megabytes in options.megabytes.split(",")
        for name in codec.CODECS
        for figure in measure(name, int(float(megabytes) * 10**6) // 4 * 4, options.rounds)
    ]
    rows = []
    for figure in figures:
        plain = figure["what"] in ("encode", "decode", "decode and add")
        limit = str(LIMITS[figure["codec"]]) if plain else ""
        row = [figure["codec"], f"{figure['bytes']:,}", figure["what"], f"{figure['milliseconds']:.2f}"]
        low, high = figure["spread"]
        rows.append([*row, f"{figure['times_memcpy']:.2f}", f"{low:.2f} to {high:.2f}", limit])
    columns = ["codec", "bytes", "what", "ms", "× memcpy", "spread", "limit"]
    note = f"median of {options.rounds} rounds"
    spreads = {"× memcpy": "spread"}
    tables.show("encoding and decoding", columns, rows, labels=3, less=["× memcpy"], spreads=spreads, note=note)
    tables.keep(figures)


if __name__ == "__main__":
    main()
