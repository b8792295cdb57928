"""`matex-tf verify`: run a script on one rank and on several, and say how far apart what they compute is."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from matex_tf import settings as settings_module
from matex_tf.core import starting
from matex_tf.errors import MatexError, SettingError
from matex_tf.features.verify import compare, judge, record
from matex_tf.job import launching
from matex_tf.job.command_line import SETTING_PAGES, Parser, whole
from matex_tf.job.target import Target
from matex_tf.launch import mpirun_command, mpirun_process, resources
from matex_tf.settings import Settings
from matex_tf.storage import atomic_file

_TOLERANCE, _STEPS = 1e-3, 20
_SEEDS = "Seed what it draws: keras.utils.set_random_seed(0), np.random.default_rng(0), and nothing from the clock."
#: Settings on which the bits of a run with --reproducible depend.
_FOR_BITS = ("reproducible", "threads", "batch_norm")


def parser() -> Parser:
    """The command line."""
    parser = Parser(
        "matex-tf verify",
        "[-n N] [options] [--setting VALUE ...] SCRIPT [ARGS ...]",
        "Run SCRIPT on one rank and on N, with one seed, and compare losses, metrics, the logs of each batch, every "
        "weight and every optimizer slot after each step. What the script writes stays, and is written each time. Ends "
        "with 0 where all is the same up to --tolerance, else with 1.",
        f"docs/verify.md; {SETTING_PAGES}",
    )
    ranks, compared, out = "ranks", "what is compared", "output"
    launching.add_ranks(parser, ranks, whole(2))
    parser.add(
        compared, "--steps", metavar="N", default=_STEPS, convert=whole(0),
        help=f"Training steps that are compared; fit and train_on_batch end after them (default: {_STEPS}; 0 for all)",
    )  # fmt: skip
    parser.add(
        compared, "--tolerance", metavar="1e-4", default=_TOLERANCE, convert=_positive,
        help=f"The largest relative difference, of an array to its largest entry (default: {_TOLERANCE:g})",
    )  # fmt: skip
    parser.add(out, "--plot", metavar="FILE", default="", help="Draw how far apart they are after each step")
    parser.add_settings(leave_out=("steps",), shown=False)
    return parser


def command(asked: argparse.Namespace) -> int:
    """Run twice and compare; returns the exit code."""
    settings = Settings.read(asked.flags)
    target = Target.read(asked.rest)
    target.require()
    atomic_file.require(asked.plot, "--plot")
    ranks = asked.ranks or max(2, resources.default_ranks(asked.hosts))
    seed = str(max(settings.seed, 0))
    words = [sys.executable, "-m", "matex_tf", "--seed", seed]
    shared = (*(_FOR_BITS if settings.reproducible else ()), *settings.of_one_rank())
    own = settings_module.as_flags({name: asked.flags[name] for name in shared if name in asked.flags})
    with launching.folder(asked.hosts, "verify") as folder:
        alone = _Alone([*words, *own, *target.words], folder, asked.steps, target)
        one = alone.run("one rank")
        several = _several(words, asked, settings, ranks, folder, target)
        judged = judge.judge(one, several, alone.again, asked.tolerance)
    found = judged.found
    show(found, asked.tolerance)
    if not judged.repeats:
        print(f"{target.name} does not repeat itself on one rank: of {ranks} ranks nothing can be said. {_SEEDS}")
        return 1
    say(judged, ranks, asked.tolerance)
    if asked.plot:
        draw(found, ranks, asked.plot)
        print(f"drawn: {asked.plot}")
    return 0 if judged.same else 1


class _Alone:
    """Runs the script on one rank, as often as it takes."""

    def __init__(self, line: list[str], folder: str, steps: int, target: Target):
        self._line, self._folder, self._steps, self._target = line, folder, steps, target
        self._environ = {name: value for name, value in os.environ.items() if name != "MATEX_TF"}

    def run(self, where: str, nudge: int = 0) -> str:
        """The folder of what the script has computed. Args: nudge: not 0: with other last digits of the weights."""
        _say(where)
        folder = os.path.join(self._folder, f"one-{len(os.listdir(self._folder))}")
        os.mkdir(folder)
        environ = self._environ | _recorded(folder, self._steps) | {record.NUDGE: str(nudge)}
        code = subprocess.run(self._line, env=environ).returncode
        _require(code, folder, "one rank", self._target)
        return folder

    def again(self, nudge: int) -> str:
        """Train on one rank again, to see what rounding changes."""
        why = "other last digits of the weights, to see what rounding does" if nudge else "the same again"
        return self.run(f"one rank, {why}", nudge)


def _several(
    words: list[str], asked: argparse.Namespace, settings: Settings, ranks: int, folder: str, target: Target
) -> str:
    """Run the script on several ranks; the folder of what it has computed."""
    _say(f"{ranks} ranks")
    several = os.path.join(folder, "several")
    os.mkdir(several)
    survive = settings.faults == "shrink"
    line = mpirun_command.mpirun_line(
        mpirun_command.find_mpirun(), ranks, asked.hosts, settings.threads, survive=survive
    )
    os.environ.update(_recorded(several, asked.steps))
    flags = settings_module.as_flags({**asked.flags, "seed": words[-1]})
    command = [*line, *words[:3], *flags, *target.words]
    code = mpirun_process.run(command, local=not asked.hosts and not resources.in_batch_system())
    _require(code, several, f"{ranks} ranks", target)
    return several


def _positive(flag: str, given: str) -> float:
    try:
        if (value := float(given)) > 0:
            return value
    except ValueError:
        pass
    raise SettingError(f"{flag} is {given!r}; it must be a number above 0, such as 1e-3.")


def _say(where: str) -> None:
    print(f"matex-tf verify: {where}", file=sys.stderr, flush=True)


def _recorded(folder: str, steps: int) -> dict[str, str]:
    return {starting.RECORD: folder, record.STEPS: str(steps)}


def _require(code: int, folder: str, where: str, target: Target) -> None:
    """Raises: MatexError: the script failed, or trained nothing that could be recorded."""
    if code:
        raise MatexError(f"{target.name} on {where} ended with exit code {code}, so there is nothing to compare.")
    if next(record.read(folder), None) is None:
        raise MatexError(
            f"{target.name} on {where} trained nothing that can be compared: neither by Keras' fit, evaluate or "
            "train_on_batch, nor by the apply of one of its optimizers."
        )


def show(found: compare.Comparison, tolerance: float) -> None:
    """Print a table: the largest difference of each kind, where it is, and since when there is more than rounding.

    Args:
        found: the training on one rank beside that on several.
        tolerance: the relative difference that was allowed.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table()
    titles = ("", "compared", "largest difference", "where", f"above {compare.ROUNDING:g} from step")
    for title in titles:
        table.add_column(title, no_wrap=True)
    for kind, one in found.found.items():
        if one.compared:
            where = f"{one.where}, step {one.step}" if one.largest else ""
            table.add_row(kind, f"{one.compared:,}", f"{one.largest:.1e}", where, _first(one))
    Console(highlight=False, width=150).print(table)
    if found.left_out:
        names = ", ".join(sorted(found.left_out))
        print(f"not compared above {tolerance:g}, since rounding alone changes these as much on one rank: {names}")
    for line in found.unequal:
        print(f"not the same: {line}")


def say(judged: judge.Judgement, ranks: int, tolerance: float) -> None:
    """Print the verdict.

    Args:
        judged: what was found, and whether it is the same.
        ranks: how many the other training had.
        tolerance: the relative difference that was allowed.
    """
    found = judged.found
    if judged.same and not found.left_out and all(one.largest == 0 for one in found.found.values()):
        print(f"{ranks} ranks give the bits of one rank")
        return
    if judged.same:
        print(f"{ranks} ranks give the answer of one rank, to {tolerance:g}")
        return
    kind, worst = max(found.found.items(), key=lambda item: item[1].largest, default=("", compare.Found()))
    what = (
        f"{kind} differ by {worst.largest:.2g}, first in step {worst.first}"
        if worst.largest > tolerance
        else "see above"
    )
    print(f"{ranks} ranks do NOT give the answer of one rank: {what} (tolerance {tolerance:g})")


def _first(one: compare.Found) -> str:
    return "never" if one.first is None else str(one.first)


def draw(found: compare.Comparison, ranks: int, path: str) -> None:
    """Draw the largest difference after each step into a PNG file, a line for each kind.

    Args:
        found: the training on one rank beside that on several.
        ranks: how many those are, for the title.
        path: of the file, which is written anew.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    import numpy as np

    from matex_tf.planning import plotting

    plt = plotting.pyplot()
    figure, axes = plt.subplots(figsize=(8, 5))
    for kind, one in found.found.items():
        if one.by_step:
            steps: Sequence[int] = sorted(one.by_step)
            axes.plot(steps, np.maximum([one.by_step[step] for step in steps], 1e-9), marker=".", label=kind)
    axes.axhline(compare.ROUNDING, color="0.6", linestyle=":", label="rounding")
    axes.set(yscale="log", xlabel="training steps", ylabel="largest relative difference")
    axes.set_title(f"{ranks} ranks beside one")
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
