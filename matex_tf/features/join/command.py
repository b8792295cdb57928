"""`matex-tf join`: start ranks that train in a running job, as one more of its groups."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from matex_tf.cli import run
from matex_tf.errors import DataError, SettingError, harmless
from matex_tf.features.join import growth, placement
from matex_tf.features.join.arrival import Line
from matex_tf.features.registry import functions
from matex_tf.job import launching
from matex_tf.job.command_line import SETTING_PAGES, Parser, whole
from matex_tf.settings import Settings
from matex_tf.watching import registry


def parser() -> Parser:
    """The command line."""
    parser = Parser(
        "matex-tf join",
        "JOB [-n N] [options] [--setting VALUE ...] [SCRIPT | -m MODULE [ARGS ...]]",
        "Let N ranks train in a running job. JOB is its number, as matex-tf top --list has it, or a copy of its job "
        "file. A job with --faults shrink gets N more ranks of its own, in the middle of an epoch, and has the same "
        "answer. To a job of --strategy elastic or server they come as one more group: they take the center and their "
        "share of the rows, and end with the training. Without SCRIPT they run what the job runs, in the same "
        "directory. They write no checkpoints and logs of Keras. What travels is not encrypted: for private networks.",
        f"docs/growing.md; {SETTING_PAGES}",
        leads=True,
    )
    title = "ranks (docs/running.md)"
    launching.add_ranks(parser, title, whole(1, "a number of ranks"), "-np")
    parser.add(
        title, "-x", action="append", dest="names", metavar="NAME", default=[],
        help="Give other hosts this variable too, as for matex-tf run; may be repeated",
    )  # fmt: skip
    parser.add(title, "--dry-run", action="store_true", help="Print the mpirun line instead of running it")
    parser.add_settings(shown=False)
    return parser


def command(given: argparse.Namespace) -> int:
    """Start the ranks; returns the exit code.

    Raises:
        SettingError: there is no such job, or none that can be joined.
    """
    path, entry = find("".join(given.first), given.flags.get("watch_dir", ""))
    flags = _by_features(entry, path, given.flags)
    if flags is None:
        why = growth.why_not(Settings.read(entry.run.get("settings", {})))
        if not why:
            return _grow(entry, given)
        raise SettingError(
            f"no rank can join job {entry.name}: {why}; and it has no center that a group could join, as --strategy "
            "elastic and server have from the first step of a fit on several ranks."
        )
    given.flags = flags
    if not given.rest:
        given.rest = list(entry.run["words"])
        try:
            os.chdir(entry.run["directory"])
        except OSError as error:
            raise SettingError(
                f"the job runs in {entry.run['directory']}, which is not there ({error.strerror}): give the script, "
                "and start it where it finds its files."
            ) from None
    return run.command(given)


def _by_features(entry: registry.Entry, path: Path, given: Mapping[str, str]) -> dict[str, str] | None:
    """The settings with which ranks join a job, by the first feature that can; see `Feature.joins`."""
    found = (joins(entry, path, given) for joins in functions("joins"))
    return next((dict(flags) for flags in found if flags is not None), None)


def _grow(entry: registry.Entry, given: argparse.Namespace) -> int:
    """Have the job start ranks that become its own, and wait for them; returns the exit code.

    Raises:
        SettingError: it runs what it runs.
        DataError: it does not answer.
    """
    if given.rest or set(given.flags) - {"watch_dir"}:
        raise SettingError(
            "ranks that join a job of --strategy sync run what it runs, with its settings: give its number and -n."
        )
    ranks, failed = given.ranks or 1, 0
    try:
        line = Line(registry.connect(entry))
        line.say({"token": entry.token, "ask": "join", "ranks": ranks, "hosts": placement.read(given.hosts)})
        for _ in range(ranks):
            said, _ = line.hear()
            print(f"matex_tf: {harmless(said['said'])}", file=sys.stderr, flush=True)
            failed += not said["came"]
    except (OSError, ValueError) as error:
        raise DataError(f"job {entry.name} does not answer, or has ended ({error}).") from None
    return 1 if failed else 0


def find(job: str, base: str) -> tuple[Path, registry.Entry]:
    """A running job, and its file.

    Args:
        job: its number, or the path of a job file.
        base: that of the setting `watch_dir`.

    Raises:
        SettingError: there is none, or the file is none.
        DataError: the directory of jobs cannot be read.
    """
    if os.sep in job or job.endswith(".json"):
        path = Path(job).absolute()
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise SettingError(f"others can read {job}, and whoever can may join the job: chmod 600 {job}.")
            return path, registry.of_text(path.read_text())
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise SettingError(f"{job} is not a job file that can be read ({error}).") from None
    try:
        known = list(registry.entries(base))
        with registry.directory(base) as folder:
            place = folder.path
    except OSError as error:
        raise DataError(f"the directory of jobs cannot be read: {error}.") from None
    for entry in known:
        if job and job in (entry.name, entry.script):
            return place / f"{entry.name}.json", entry
    there = ", ".join(f"{entry.name} ({entry.script})" for entry in known) or "none is running that can be found"
    what = f"there is no job {job}" if job else "no job is named"
    raise SettingError(f"{what}: {there}. matex-tf join JOB wants its number.")
