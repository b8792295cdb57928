"""A job in the terminal: a table of ranks, what a person asks in a line, and what has happened."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from matex_tf.watching import progress
from matex_tf.watching.job_state import DIED, RUNS

_MOST_EVENTS = 8
_STYLES = {RUNS: "", DIED: "red", "ended": "dim"}


def render(name: str, job: dict[str, Any]) -> Group:
    """What is shown of a job.

    Args:
        name: the job.
        job: see `JobState.public`.
    """
    since = progress.duration(time.time() - job["started"])
    alive = f"{job['alive']} of {job['size']} rank{'s' * (job['size'] > 1)}"
    head = Text(f"{job['script']}, job {name}: {alive}, for {since}", style="bold")
    table = Table(box=None, pad_edge=False)
    for column in ("rank", "host", "step", "steps/s", "exchange", "wait", "input", "cores", "memory", ""):
        table.add_column(column, justify="left" if column in ("host", "") else "right", no_wrap=True)
    for rank in job["ranks"]:
        table.add_row(*_row(rank), style=_STYLES[rank["status"]])
    events = [
        Text(f"{time.strftime('%H:%M:%S', time.localtime(when))}  {what}")
        for when, what in job["events"][-_MOST_EVENTS:]
    ]
    return Group(head, Text(progress.text(job) or "no training step in the last seconds"), Text(), table, *events)


def _row(rank: dict[str, Any]) -> list[str]:
    number, host = str(rank["rank"]), rank.get("host", "")
    if rank["status"] != RUNS:
        return [number, host, str(rank.get("step", "")), "", "", "", "", "", "", rank["status"]]
    return [
        number,
        host,
        f"{rank['step']:,}",
        f"{rank['steps_per_second']:.3g}",
        *(f"{rank[share]:.0%}" for share in ("exchange", "wait", "input")),
        f"{rank['cpu']:.1f}/{rank['cores']}",
        f"{rank['memory'] / 1e6:,.0f} MB",
        "straggler: the others wait for it" if rank["straggler"] else "",
    ]
