"""Tables of figures: how every part of `scripts/bench` prints them, and keeps them where `--json` asks.

A part makes its options with `parser` and `parse`, prints with `show`, and hands what it found to `keep`. The file of
`--json` is written anew by each of the two, so that a part that is stopped leaves what it had. It has

    part, machine, load     what ran, on what, and the load average as it began
    tables                  a list of `Table`
    figures                 what was found, in a form of the part's own; None until the part has some
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any


@dataclass
class Table:
    """A table as it was printed.

    Attributes:
        title: what is shown; two runs are compared by it, so how many rounds there were belongs into `note`.
        rows: cells as they were printed.
        labels: how many columns, from the left, say what a row is about.
        less: columns whose figures are better where they are less.
        spreads: by such a column the one that has the least and the most of its rounds, as "1.2 to 3.4".
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    labels: int = 1
    less: list[str] = field(default_factory=list)
    spreads: dict[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass
class _Run:
    """What this process has printed so far: one list, as tables are printed wherever a part has them ready."""

    part: str = ""
    file: str = ""
    load: float = 0.0
    tables: list[Table] = field(default_factory=list)
    figures: Any = None

    def write(self) -> None:
        if self.file:
            kept: dict[str, Any] = {"part": self.part, "machine": machine(), "load": self.load}
            kept["tables"] = [dataclasses.asdict(table) for table in self.tables]
            Path(self.file).write_text(json.dumps({**kept, "figures": self.figures}, indent=1))


_RUN = _Run()


def machine() -> dict[str, Any]:
    """What figures depend on and a commit does not: two runs with the same can be compared."""
    model = platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), model)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"processor": model, "cores": len(os.sched_getaffinity(0)), "memory_gib": round(memory)}


def parser(part: str, doc: str | None, layers: bool = False) -> argparse.ArgumentParser:
    """The options of a part: `--json` and `--help`, to which it adds its own.

    Args:
        part: as `scripts/bench` calls it.
        doc: of its module; the first line is shown.
        layers: whether it has `--layers` too.
    """
    made = argparse.ArgumentParser(prog=f"scripts/bench {part}", description=(doc or "").partition("\n")[0])
    made.add_argument("--json", metavar="FILE", help="write the tables and the figures to this file")
    if layers:
        made.add_argument("--layers", action="store_true", help="each rank of this package has a private layer")
    return made


def parse(made: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the command line of a part."""
    options = made.parse_args()
    _RUN.part, _RUN.file, _RUN.load = made.prog.split()[-1], options.json or "", os.getloadavg()[0]
    _RUN.tables = []
    return options


def show(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    labels: int = 1,
    less: Sequence[str] = (),
    spreads: Mapping[str, str] | None = None,
    note: str = "",
) -> None:
    """Print a table, and keep it; for the arguments see `Table`.

    Where several columns say what a row is about, what the first of them says is printed once.
    """
    table = Table(title, list(columns), [list(row) for row in rows], labels, list(less), dict(spreads or {}), note)
    _RUN.tables.append(table)
    _RUN.write()
    from rich.console import Console
    from rich.table import Table as Shown

    shown = Shown()
    for number, column in enumerate(columns):
        shown.add_column(column, justify="right" if number >= labels else "left", no_wrap=True)
    repeats = [labels > 1 and row[0] == before[0] for before, row in pairwise([[""], *table.rows])]
    for row, again in zip(table.rows, repeats, strict=True):
        if any(repeats) and not again:
            shown.add_section()
        shown.add_row("" if again else row[0], *row[1:])
    Console(highlight=False, markup=False, width=180).print(f"{title} ({note})" if note else title, shown, sep="\n")
    sys.stdout.flush()


def keep(figures: Any) -> None:
    """What the part has found so far, as JSON can hold it."""
    _RUN.figures = figures
    _RUN.write()
