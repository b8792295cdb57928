"""`matex-tf grow`: candidates of a blueprint train side by side, the worse half stops, the best grows on all ranks."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from matex_tf import settings as settings_module
from matex_tf.errors import SettingError
from matex_tf.features.blueprints import halving, ranges, source
from matex_tf.features.blueprints.halving import Candidate, Rung
from matex_tf.features.blueprints.side_by_side import SideBySide, Task
from matex_tf.job import launching
from matex_tf.job.command_line import SETTING_PAGES, Parser, whole
from matex_tf.job.target import Target
from matex_tf.launch import mpirun_command, resources
from matex_tf.settings import Settings
from matex_tf.storage import atomic_file

_CANDIDATES = 8


def parser() -> Parser:
    """The command line."""
    parser = Parser(
        "matex-tf grow",
        "[-n N] [options] [--setting VALUE ...] [BLUEPRINT] SCRIPT [ARGS ...]",
        "Find a network for SCRIPT. BLUEPRINT is a file that ends in .yaml or .json, with ranges such as "
        "units: 32..512; without one the script has them, in matex_tf.Blueprint. Candidates are drawn from the ranges "
        "and train on groups of ranks side by side. After each rung the worse half stops. The best one then trains to "
        "the end on all ranks, and the script with it.",
        f"docs/blueprints.md; {SETTING_PAGES}",
    )
    ranks, drawn, out = "ranks", "candidates", "output"
    launching.add_ranks(parser, ranks, whole(1))
    parser.add(
        ranks, "--groups", metavar="N", default=0, convert=whole(1),
        help="Groups of ranks that train candidates side by side (default: as many as there are ranks or candidates)",
    )  # fmt: skip
    parser.add(
        drawn, "--candidates", metavar="N", default=_CANDIDATES, convert=whole(1),
        help=f"How many; with powers of two all rungs halve evenly (default: {_CANDIDATES})",
    )  # fmt: skip
    parser.add(
        drawn, "--brackets", metavar="N", default=1, convert=whole(1),
        help="Search so often, each time with half as many candidates, which train twice as long before some stop "
        "(Hyperband; default: 1)",
    )  # fmt: skip
    parser.add(
        drawn, "--objective", metavar="NAME", default="",
        help="The score, a name in the logs of fit (default: the first metric on held-out rows, else val_loss)",
    )  # fmt: skip
    parser.add(out, "--png", metavar="FILE", default="", help="Draw the tree of candidates")
    parser.add(out, "--json", metavar="FILE", default="", help="Write all that was found to a file")
    parser.add(out, "--keep", metavar="FILE", default="", help="Write the values of the best candidate to a JSON file")
    parser.add_settings(leave_out=("groups",), shown=False)  # of a strategy; here each group is a job
    return parser


def command(given: argparse.Namespace) -> int:
    """Find a network and train it; returns the exit code of the script."""
    settings = Settings.read(given.flags)
    for flag in ("png", "json", "keep"):
        atomic_file.require(getattr(given, flag), f"--{flag}")
    words, found = list(given.rest), {}
    if words and source.is_blueprint(words[0]):
        found = source.ranges(source.read(words.pop(0)))
    target = Target.read(words)
    target.require()
    total = given.ranks or resources.default_ranks(given.hosts)
    if resources.in_batch_system() and not given.hosts:
        raise SettingError("in a batch job matex-tf grow needs --hosts, to give each group of ranks its own.")
    with launching.folder(given.hosts, "grow") as folder:
        try:
            return Search(given, settings, target, found, total, folder).run()
        except KeyboardInterrupt:  # the jobs are in sessions of their own, and were ended by this process
            print("matex-tf grow: the search is stopped, and nothing of it is kept", file=sys.stderr, flush=True)
            return 128 + signal.SIGINT


class Search:
    """One call of the command.

    Args:
        given: its command line.
        settings: of the runs.
        target: the script.
        found: the ranges of the blueprint, by name.
        total: ranks.
        folder: which all ranks see.
    """

    def __init__(
        self,
        given: argparse.Namespace,
        settings: Settings,
        target: Target,
        found: dict[str, ranges.Range],
        total: int,
        folder: str,
    ):
        self.given, self.target, self.ranges, self.total, self.folder = given, target, found, total, folder
        self.settings = settings
        self._of = sum(halving.sizes(given.candidates, given.brackets))  # candidates in all
        self.seed = settings.seed if settings.seed >= 0 else int.from_bytes(os.urandom(3), "little")
        self.mpirun = mpirun_command.find_mpirun() if total > 1 or given.hosts else None
        # Of each rank while groups share the cores of this machine; the best one's ranks divide them by themselves.
        self._threads = settings.threads or (0 if given.hosts else max(1, resources.cores().threads // total))
        self.epochs = 0
        self.objective, self.more = given.objective, True
        self._side: SideBySide | None = None
        self._groups = 0

    def run(self) -> int:
        """Find the best candidate and train it; the exit code of its job."""
        begin = time.perf_counter()
        try:
            order, rungs = halving.halve(
                self.given.candidates, self._train, lambda: self.epochs, self._say, self.given.brackets
            )
        finally:
            if self._side is not None:
                self._side.__exit__(*sys.exc_info())
        searched = time.perf_counter() - begin
        best = order[0]
        self._note(f"candidate {best.number} trains to its end on {_ranks(self.total)}: {self._values(best)}")
        code = self._train_best(best)
        if code:
            return code
        self._note(
            f"{self.objective} {best.details['shown'][-1]:.4f} with {self._values(best)}; {_seconds(searched)} for the "
            f"search, {time.perf_counter() - begin - searched:.1f} s for the best, "
            f"{sum(one.rows for one in order):,} rows trained"
        )
        self._table(order)
        self._write(order, rungs, time.perf_counter() - begin)
        return 0

    def _train(self, alive: Sequence[Candidate], part: float) -> float:
        """Train candidates up to a part of the whole training; see `halving.halve`."""
        begin = time.perf_counter()
        count = min(self.given.groups or self.total, self.total, len(alive))
        if count != self._groups:
            if self._side is not None:
                self._side.end()
            self._side = SideBySide(self._lines(count), self._new_folder(count), threads=self._threads)
            self._groups = count
        assert self._side is not None
        tasks = [self._task(one, part) for one in alive]
        self._side.run(tasks)
        for one, task in zip(alive, tasks, strict=True):
            self._take(one, task.found)
        return time.perf_counter() - begin

    def _new_folder(self, count: int) -> str:
        path = os.path.join(self.folder, f"of-{count}-groups")
        os.mkdir(path)
        return path

    def _task(self, one: Candidate, part: float) -> Task:
        """What the ranks are handed: the fields of `candidates.candidate.Candidate`."""
        rung = len(one.scores)
        if part >= 1 and one.epochs and one.epochs[-1] >= self.epochs:  # one epoch in all, which its rung has had
            rung, one.epochs = 0, []
        if not one.values:
            one.values = ranges.drawn(self.ranges, one.number, self._of, self.seed)
        path = os.path.join(self.folder, f"candidate-{one.number}-{rung}" + "-best" * (part >= 1))
        state = os.path.join(self.folder, f"candidate-{one.number}-{rung - 1}.npz") if rung else ""
        handed = {
            "number": one.number, "of": self._of, "seed": self.seed, "values": one.values, "part": part,
            "objective": self.objective, "state": state, "done": one.epochs[-1] if one.epochs else 0,
            "keep": f"{path}.npz" if part < 1 else "", "result": f"{path}.result",
        }  # fmt: skip
        return Task(str(one.number), json.dumps(handed), f"{path}.result")

    def _take(self, one: Candidate, found: dict[str, Any]) -> None:
        """Note what was found for a candidate."""
        one.values = found.get("values", one.values)
        if "failed" in found:
            one.failed = " ".join(str(found["failed"]).split())
            return
        self.epochs = found["whole"]
        self.objective = self.objective or found["objective"]
        self.more = found.get("more", self.more)
        one.rows += found["rows"]
        one.epochs.append(found["done"])
        score, before = found["score"], one.scores[-1] if one.scores else -math.inf
        signed = -math.inf if score is None else score if self.more else -score
        one.scores.append(max(signed, before))
        one.details["parameters"] = found["parameters"]
        one.details.setdefault("shown", []).append(one.scores[-1] if self.more else -one.scores[-1])

    def _train_best(self, best: Candidate) -> int:
        task = self._task(best, 1.0)
        folder = os.path.join(self.folder, "best")
        os.mkdir(folder)
        with SideBySide(self._lines(1, hushed=False), folder, shown=True) as job:
            job.run([task])
            code = job.end()
        if not task.found or "failed" in task.found:
            return code or 1
        self._take(best, task.found)
        return code

    def _lines(self, count: int, hushed: bool = True) -> list[Callable[[str], list[str]]]:
        """The command lines of so many jobs, of their folders; the ranks are dealt out evenly."""
        flags = {**self.given.flags, "seed": str(self.seed), **({"notes": "off"} if hushed else {})}
        job = "matex_tf.features.blueprints.candidates.job"
        words = [sys.executable, "-m", "matex_tf", *settings_module.as_flags(flags), "-m", job]
        shares = [self.total * (k + 1) // count - self.total * k // count for k in range(count)]
        hosts = _divided(self.given.hosts, shares)

        def line(size: int, where: str) -> Callable[[str], list[str]]:
            start: list[str] = []
            if self.mpirun is not None and (size > 1 or where):
                threads = (self._threads or 1) if hushed else self.settings.threads
                start = mpirun_command.mpirun_line(self.mpirun, size, where, threads)
            return lambda folder: [*start, *words, folder, *self.target.words]

        return [line(size, where) for size, where in zip(shares, hosts, strict=True)]

    def _say(self, number: int, rungs: int, rung: Rung, everyone: Sequence[Candidate]) -> None:
        for one in everyone:
            if one.failed and one.number in rung.trained and not one.details.get("said"):
                one.details["said"] = True
                self._note(f"candidate {one.number} failed ({self._values(one)}): {one.failed[-400:]}")
        known = [one.details["shown"][-1] for one in everyone if one.number in rung.kept]
        best = (max(known) if self.more else min(known)) if known else math.nan
        each = f"{self._groups} group{'s' * (self._groups > 1)} of {_ranks(self.total // max(1, self._groups))}"
        how = f"{_seconds(rung.seconds)} on {each}" if rung.seconds else "no further training, as epochs are few"
        self._note(
            f"rung {number} of {rungs}: {len(rung.trained)} candidates up to epoch {rung.until} of {self.epochs}, {how}"
            f"; {self.objective} {best:.4f} at best; {len(rung.kept)} continue"
        )

    def _values(self, one: Candidate) -> str:
        return ranges.shown(one.values) or "the script's own values"

    def _note(self, line: str) -> None:
        print(f"matex-tf grow: {line}", file=sys.stderr, flush=True)

    def _table(self, order: Sequence[Candidate]) -> None:
        """All candidates, the best first."""
        from rich.console import Console
        from rich.table import Table

        table = Table()
        for title in ("candidate", "values", "parameters", "epochs", self.objective):
            table.add_column(title, overflow="fold")
        for one in order:
            known = one.details.get("shown")
            score = (
                f"{known[-1]:.4f}" if known and math.isfinite(known[-1]) else "failed" if one.failed else "not finite"
            )
            parameters = f"{one.details['parameters']:,}" if "parameters" in one.details else ""
            table.add_row(str(one.number), ranges.shown(one.values), parameters, str((one.epochs or [0])[-1]), score)
        Console(highlight=False, width=120).print(table)

    def _write(self, order: Sequence[Candidate], rungs: Sequence[Rung], seconds: float) -> None:
        if self.given.keep:
            atomic_file.put_json(self.given.keep, order[0].values, indent=1)
        if self.given.json:
            found = {"objective": self.objective, "epochs": self.epochs, "seconds": seconds, "seed": self.seed}
            candidates = [{**asdict(one), "scores": one.details.get("shown", [])} for one in order]
            atomic_file.put_json(
                self.given.json, {**found, "candidates": candidates, "rungs": [asdict(one) for one in rungs]}, indent=1
            )
        if self.given.png:
            from matex_tf.features.blueprints import picture

            title = f"{len(order)} candidates for {os.path.basename(self.target.name)}"
            picture.draw(self.given.png, order, rungs, self.epochs, self.objective, title)
            print(f"drawn: {self.given.png}")


def _divided(hosts: str, shares: Sequence[int]) -> list[str]:
    """The hosts of each group of ranks, as `--hosts` has them: the slots of all are dealt out in their order.

    Raises:
        SettingError: there are fewer slots than ranks.
    """
    if not hosts:
        return [""] * len(shares)
    slots = [
        host.partition(":")[0] for host, count in zip(hosts.split(","), resources.counts(hosts), strict=True)
        for _ in range(count)
    ]  # fmt: skip
    if len(slots) < sum(shares):
        raise SettingError(f"--hosts {hosts} has room for {len(slots)} ranks, and -n says {sum(shares)}.")
    result, first = [], 0
    for share in shares:
        mine = slots[first : first + share]
        result.append(",".join(f"{name}:{mine.count(name)}" for name in dict.fromkeys(mine)))
        first += share
    return result


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"


def _seconds(value: float) -> str:
    return f"{value:.1f} s"
