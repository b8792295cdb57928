"""`matex-tf top`: a running job, live in the terminal."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from matex_tf.errors import DataError, MatexError, SettingError
from matex_tf.features.watch import view
from matex_tf.job.command_line import Parser
from matex_tf.watching import registry

_SECONDS = 1.0


def parser() -> Parser:
    """The command line."""
    parser = Parser(
        "matex-tf top",
        "[JOB] [--once | --json]",
        "Show a running job of yours: each rank's step, speed, cores and memory, the time that exchange, waiting and "
        "input take, stragglers, deaths and recoveries. JOB is the number of the batch job, or of the process of rank "
        "0; without it the newest one. Ends with the job, or with Ctrl-C.",
        "docs/watching.md",
        refusal="matex-tf top takes no {words}{near}.",
        mixed=True,
    )
    parser.add("output", "--list", action="store_true", help="List the jobs that can be watched")
    parser.add("output", "--once", action="store_true", help="Show it once, and end")
    parser.add("output", "--json", action="store_true", help="Print all that is known of it once, as JSON")
    parser.add(
        "output", "--watch-dir", dest="watch_dir", metavar="DIR", default="", help="That of the job, if it has one"
    )
    return parser


def command(given: argparse.Namespace) -> int:
    """Show a job until it ends; returns the exit code."""
    if len(given.rest) > 1:
        raise SettingError(f"one job at a time: {' or '.join(given.rest)}.")
    try:
        known = list(registry.entries(given.watch_dir))
    except OSError as error:
        raise DataError(f"the directory of jobs cannot be read: {error}.") from None
    if given.list:
        for entry in known:
            print(f"{entry.name}  {entry.script}, {entry.ranks} ranks, first rank on {entry.host}")
        return 0
    entry = _chosen(known, given.rest[0] if given.rest else "")
    job = _ask(entry)
    if given.json:
        print(json.dumps(job, indent=1))
        return 0
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    if given.once or not sys.stdout.isatty():
        console.print(view.render(entry.name, job))
        return 0
    try:
        with Live(view.render(entry.name, job), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(_SECONDS)
                job = _ask(_again(entry, given.watch_dir))
                live.update(view.render(entry.name, job), refresh=True)
    except MatexError:
        print(f"job {entry.name} has ended")
    except KeyboardInterrupt:
        pass
    return 0


def _chosen(known: list[registry.Entry], name: str) -> registry.Entry:
    if not known:
        raise DataError("no job of yours is running that can be watched (matex-tf run, --watch on).")
    if not name:
        return known[0]
    for entry in known:
        if name in (entry.name, entry.script):
            return entry
    raise SettingError(f"there is no job {name}; there is {', '.join(entry.name for entry in known)}.")


def _again(entry: registry.Entry, base: str) -> registry.Entry:
    """The entry of a job as it is now: another rank may answer by this time."""
    return next((one for one in registry.entries(base) if one.name == entry.name), entry)


def _ask(entry: registry.Entry) -> dict[str, Any]:
    try:
        return registry.ask(entry)
    except (OSError, ValueError) as error:
        raise DataError(
            f"job {entry.name} does not answer: {error}. Its first rank runs on {entry.host}: try there."
        ) from None
