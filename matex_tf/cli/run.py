"""`matex-tf run`: start a script on many ranks, and wait for it."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import shlex
import shutil
import sys

from matex_tf import settings as settings_module
from matex_tf.cli.checks import gpus
from matex_tf.core.output import TERMINAL
from matex_tf.core.sign import Sign
from matex_tf.errors import SettingError
from matex_tf.features.registry import faults, functions
from matex_tf.job import launching, suggestions
from matex_tf.job.command_line import SETTING_PAGES, Parser, whole
from matex_tf.job.target import Target
from matex_tf.launch import mpirun_command, mpirun_process, resources
from matex_tf.settings import Settings
from matex_tf.watching import registry


def parser() -> Parser:
    """The command line."""
    parser = Parser(
        "matex-tf run",
        "[-n N] [options] [--setting VALUE] (SCRIPT | -m MODULE | -c CODE | -) [ARGS ...]",
        "Run a script on N MPI ranks of this machine, or of others. Options come before the script.",
        f"docs/running.md; {SETTING_PAGES}",
    )
    title = "ranks (docs/running.md)"
    launching.add_ranks(parser, title, whole(1, "a number of ranks"), "-np")
    parser.add(
        title, "--ranks", dest="between", metavar="2:8", default=None, convert=_between,
        help="Begin with as many ranks as there is room for, 2 to 8, and continue with those that join and are "
        "left (--faults shrink, --min-ranks, --max-ranks)",
    )  # fmt: skip
    parser.add(
        title, "-x", action="append", dest="names", metavar="NAME", default=[],
        help="Give other hosts this variable too, beside MATEX_*, PATH, PYTHON*, TF_* and the like; may be repeated",
    )  # fmt: skip
    parser.add(title, "--dry-run", action="store_true", help="Print the mpirun line instead of running it")
    parser.add_settings()
    return parser


def _between(flag: str, given: str) -> tuple[int, int]:
    least, colon, most = given.partition(":")
    if not (colon and least.isdigit() and most.isdigit() and 0 < int(least) <= int(most)):
        raise SettingError(f"{flag} is {given!r}; it must look like 2:8, the fewest ranks and the most.")
    return int(least), int(most)


def _begin_with(room: int, given: argparse.Namespace) -> int:
    """The ranks that a job of --ranks begins with, whose flags it completes. Args: room: for so many."""
    least, most = given.between
    if room < least:
        raise SettingError(f"--ranks asks for {least} ranks at least, and there is room for {room} (-n, --hosts).")
    given.flags = {"faults": "shrink", "min_ranks": str(least), "max_ranks": str(most), **given.flags}
    return min(room, most)


def command(given: argparse.Namespace) -> int:
    """Start the ranks; returns the exit code."""
    for name in given.names:
        if name not in os.environ:
            raise SettingError(f"-x {name}: there is no such variable in the environment.")
    ranks, hosts = given.ranks or resources.default_ranks(given.hosts), given.hosts
    if vars(given).get("between"):  # not of matex-tf join
        ranks = _begin_with(ranks, given)
    settings = Settings.read(given.flags)
    target = Target.read(given.rest)
    target.require()
    settings.refuse_conflicts(settings.training_ranks(ranks))
    if settings.notes and not given.dry_run:
        _say_what_may_be_meant(given, target, ranks)
    survive = settings.faults == "shrink"
    mpirun, seconds = mpirun_command.find_mpirun(), settings.stall_abort_seconds

    def line(ranks: int, hosts: str, more: dict[str, str]) -> list[str]:
        words = mpirun_command.mpirun_line(mpirun, ranks, hosts, settings.threads, given.names, survive, seconds)
        words += [sys.executable, "-m", "matex_tf"]
        return [*words, *settings_module.as_flags({**given.flags, **more}), *target.words]

    if given.dry_run:
        print(shlex.join(line(ranks, hosts, {})))
        most = max(resources.counts(hosts)) if hosts else ranks
        for words in gpus.shared_out(min(ranks, most), resources.gpus()):
            _say(words)
        return 0
    if sys.stderr.isatty():
        os.environ[TERMINAL] = str(shutil.get_terminal_size().columns)
    local = not hosts and not resources.in_batch_system()
    path = os.path.abspath(given.hosts_file) if vars(given).get("hosts_file") else ""
    hosts_now = functools.partial(launching.read_hostfile, "--hosts-file", path) if path else None
    if by_feature := faults().get(settings.faults):
        code = importlib.import_module(by_feature.module).run(
            line, ranks, hosts, settings, target.name, mpirun, hosts_now
        )
    elif ranks == 1 and local:  # the code of mpirun is that of the script, however it ends
        code = mpirun_process.run(line(ranks, hosts, {}))
    else:
        with Sign() as sign, contextlib.ExitStack() as beside:
            for follow in functions("beside"):
                beside.enter_context(follow(given, settings, sign.job))
            code = mpirun_process.run(line(ranks, hosts, {}), local=local, survive=survive, sign=sign)
        if sign.missed:
            _say(f"error: {mpirun_process.NO_SIGN}")
    if code and settings.watch:
        registry.forget_gone(settings.watch_dir)
    if settings.notes and settings.output not in ("first", "all") and ranks > 1:
        where = os.path.join(settings.output, "rank.R.log") + ("" if local else ", on its host")
        _say(f"what each rank R printed is in {where}")
    return code


def _say(line: str) -> None:
    print(f"matex_tf: {line}", file=sys.stderr, flush=True)


def _say_what_may_be_meant(given: argparse.Namespace, target: Target, ranks: int) -> None:
    flags = [*map(settings_module.flag_name, given.flags), *(["-n", "-np"] if given.ranks else [])]
    flags += ["--hosts"] if given.hosts else []
    lines = suggestions.misplaced(target.arguments, flags)
    if given.hosts and ranks > resources.slots(given.hosts):
        room = resources.slots(given.hosts)
        lines.append(f"{ranks} ranks are more than the {room} that --hosts {given.hosts} has room for")
    for line in lines:
        _say(line)
