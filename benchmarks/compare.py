"""What has become slower from one run of the benchmarks to another: scripts/bench compare A.json B.json.

The files are those of `--json`, of `scripts/bench all` or of a part. Rows are matched by their labels. A figure has
become slower where all rounds of the second run took longer than all of the first; where a table does not say how far
its rounds were apart, from 10 % on. Rounding is allowed for.

The exit code is 0 where nothing became slower, 1 where something did, and 2 where nothing can be compared.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import tables

#: How much slower counts, where a table has no spread.
ALLOWED = 1.10
_NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Figure:
    """A figure of a row.

    Attributes:
        value: as it was printed.
        low, high: the least and the most of the rounds; None where the table does not say.
        rounding: by how much the value may be off, since it was rounded.
    """

    value: float
    low: float | None = None
    high: float | None = None
    rounding: float = 0.0

    def slower_than(self, before: Figure) -> bool:
        """Whether it has become slower, by the rule of this module."""
        off = 1.001 * (self.rounding + before.rounding)  # the difference of two decimals is off, too
        if self.value - before.value <= off:
            return False
        if self.low is None or before.high is None:
            return before.value <= 0 or self.value / before.value > ALLOWED
        return self.low - before.high > off


def figure(cell: str, spread: str = "") -> Figure | None:
    """What a cell says, with a cell such as "1.2 to 3.4" beside it; None where it has no number."""
    found = _NUMBER.fullmatch(cell.strip())
    if not found:
        return None
    decimals = len(cell.strip().partition(".")[2])
    ends = [float(number.replace(",", "")) for number in _NUMBER.findall(spread)]
    low, high = ends if len(ends) == 2 else (None, None)
    return Figure(float(found[0].replace(",", "")), low, high, 0.5 * 10**-decimals)


#: Of a figure: the part, the table, the labels of the row, and the column.
Key = tuple[str, str, tuple[str, ...], str]


def figures(run: Mapping[str, Any]) -> Iterator[tuple[Key, Figure]]:
    """All figures of a run that are better where they are less."""
    for part in run.get("parts", [run]):
        for kept in part["tables"]:
            table = tables.Table(**kept)
            for row in table.rows:
                cells = dict(zip(table.columns, row, strict=True))
                for column in table.less:
                    if one := figure(cells[column], cells.get(table.spreads.get(column, ""), "")):
                        yield (part["part"], table.title, tuple(row[: table.labels]), column), one


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """In what the machines of two runs differ, a line each."""
    names = [*before["machine"], *(name for name in after["machine"] if name not in before["machine"])]
    pairs = [(name, before["machine"].get(name), after["machine"].get(name)) for name in names]
    return [f"{name}: {one} and {other}" for name, one, other in pairs if one != other]


def read(path: str) -> dict[str, Any]:
    """A run, from its file."""
    try:
        run = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        print(f"scripts/bench compare: {path} cannot be read ({error}).", file=sys.stderr)
        sys.exit(2)
    if not isinstance(run, dict) or not ("parts" in run or "tables" in run) or "machine" not in run:
        print(f"scripts/bench compare: {path} has no tables: write it with --json of this version.", file=sys.stderr)
        sys.exit(2)
    return run


def names(run: Mapping[str, Any]) -> set[str]:
    """The parts of a run that have a table."""
    return {part["part"] for part in run.get("parts", [run]) if part["tables"]}


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> int:
    """Print what became slower; the exit code."""
    if different := differences(before, after):
        print("these are of different machines, and ratios say little of the code:", *different, sep="\n  ")
    old, new = dict(figures(before)), dict(figures(after))
    for mine, others, which in ((names(before), names(after), "first"), (names(after), names(before), "second")):
        if mine - others:
            print(f"only the {which} file has: {', '.join(sorted(mine - others))}")
    both = [key for key in old if key in new]
    if not both:
        print("the files have no figure in common: nothing is compared", file=sys.stderr)
        return 2
    slower = [key for key in both if new[key].slower_than(old[key])]
    faster = [key for key in both if old[key].slower_than(new[key])]
    for title, keys in (("became slower", slower), ("became faster", faster)):
        if keys:
            tables.show(title, ["part", "table", "row", "column", "first", "second", "ratio"], _rows(keys, old, new), 4)
    print(f"{len(both)} figures compared: {len(slower)} slower, {len(faster)} faster")
    return 1 if slower else 0


def _rows(keys: Sequence[Key], old: Mapping[Key, Figure], new: Mapping[Key, Figure]) -> list[list[str]]:
    rows = []
    for key in keys:
        part, title, labels, column = key
        one, other = old[key].value, new[key].value
        ratio = f"{other / one:.2f}" if one > 0 else ""
        rows.append([part, title, ", ".join(labels), column, f"{one:g}", f"{other:g}", ratio])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench compare", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", metavar="A.json", help="of the run that is compared with")
    parser.add_argument("after", metavar="B.json", help="of the run that may have become slower")
    options = parser.parse_args()
    return compare(read(options.before), read(options.after))


if __name__ == "__main__":
    sys.exit(main())
