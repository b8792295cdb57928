"""What `scripts/demo` shows in the end: why more ranks may be slower here, and the runs side by side."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

RANKS = 4


def why(cores: int) -> str:
    """What to expect of the seconds, in words."""
    if cores >= RANKS:
        return f"This machine has {cores} cores, so each of {RANKS} ranks has one of its own."
    return (
        f"This machine has {cores} core{'s' * (cores > 1)}, so {RANKS} ranks take longer here than one. They split the "
        "training, but have no more cores for it\nthan one rank has. And each rank does what every process does: it "
        "imports TensorFlow, traces the step, exchanges\ngradients and waits for the others. With a core or a node "
        "for each rank, more ranks are faster.\nThe last row shows the work that is split: a rank does about a quarter."
    )


def table(core: dict[str, float], one: dict[str, float], four: dict[str, float], work: list[float]) -> Table:
    """The three runs, and the work of a rank."""
    shown = Table(title="examples/digits.py, the same script")
    for column in ("", "1 rank on 1 core", "1 rank", f"{RANKS} ranks", "difference"):
        shown.add_column(column, justify="right" if column else "left")
    for name in ("training loss", "training accuracy", "loss", "accuracy"):
        label = name if name.startswith("training") else f"test {name}"
        each = [f"{run[name]:.7f}" for run in (core, one, four)]
        shown.add_row(label, *each, f"{four[name] - one[name]:+.1e}")
    shown.add_row("seconds", *(f"{run['seconds']:.1f}" for run in (core, one, four)), "")
    ratio = f"{work[1] / work[0]:.2f} of 1 rank"
    shown.add_row("CPU seconds of a rank in an epoch, wider network", "", f"{work[0]:.2f}", f"{work[1]:.2f}", ratio)
    return shown


def main(folder: Path) -> int:
    """Print it all; 1 if the answers are not the same."""
    core, one, four, *work = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("core", "1", "4", "work-1", "work-4")
    )
    console = Console(highlight=False, width=120)
    console.print(f"\n{why(len(os.sched_getaffinity(0)))}\n")
    console.print(table(core, one, four, [run["work"] for run in work]))
    apart = max(abs(four[name] - one[name]) / max(abs(one[name]), 1e-9) for name in ("training loss", "loss"))
    if apart > 1e-4:
        print(f"the answers are not the same: the losses are {apart:.1e} apart", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
