"""Cases held against `matex-tf verify`: where ranks give the same answer, it must say so, and else not.

`scripts/verify_cases` runs the tests with it: every case whose answer a test finds to be that of one rank is judged by
the recorder and by `matex_tf.features.verify.judge`, as they are, in ranks that start once.
"""

from __future__ import annotations

import collections
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pool import CASE_SECONDS, Case, Outcome, Pool, plan

from matex_tf.core import starting
from matex_tf.features.verify import judge, record
from tests.support import named
from tests.support.named import Named

RECORDED = Named("tests.features.verify.cases.recorded", "recorded")
TOLERANCE = 1e-3  # that of the command
#: Cases that run another program on one rank, which verify does not do: the formulas of late gradients; rows in the
#: order of ranks that each have some, where verify puts them together in the order of the file.
OTHER_ON_ONE_RANK = {"pipe:delayed", "data:shards"}


def recording_pool() -> Pool:
    """Ranks whose patches write down what they train, from the first import on."""
    return Pool(environ={starting.RECORD: tempfile.mkdtemp(prefix="matex-records-")})


@dataclass
class Trained:
    """A case that ranks have run, with its records."""

    case: Case
    kwargs: Mapping[str, Any]
    folder: Path
    several: Path
    one: Path

    def label(self) -> str:
        """What a reader knows it by."""
        more = ", ".join(f"{name}={value!r}" for name, value in self.kwargs.items())
        return f"{named.label(self.case)}({more})"[:150]


class Recorded:
    """Runs cases on worlds of several sizes, with records, and judges them."""

    def __init__(self, pool: Pool):
        self._pool = pool
        self._home = Path(tempfile.mkdtemp(prefix="matex-verified-"))
        self._numbers = itertools.count()
        self.waiting: list[Trained] = []

    def run(
        self, case: Case, sizes: Sequence[int], kwargs: dict[str, Any], seconds: float = CASE_SECONDS
    ) -> dict[int, list[Outcome]]:
        """The outcomes by size; what was recorded waits for its judgement. Args: sizes: 1, and more."""
        folder = self._home / str(next(self._numbers))
        found: dict[int, list[Outcome]] = {}
        places: dict[int, Path] = {}
        for groups in plan(sizes):
            outcomes = self._of(case, kwargs, folder, groups, [0] * len(groups), seconds)
            for index, (group, result) in enumerate(zip(groups, outcomes, strict=True)):
                found[len(group)], places[len(group)] = result, folder / f"{len(group)}.{index}"
        most = max(found)
        if not any(outcome.error for outcome in found[1] + found[most]):
            self.waiting.append(Trained(case, kwargs, folder, places[most], places[1]))
        return found

    def judge(self, trained: Trained) -> judge.Judgement | None:
        """The judgement of `matex-tf verify`; None where there is nothing to compare."""
        if next(record.read(trained.one), None) is None:
            return None
        again: list[Path] = []

        def alone(nudge: int) -> Path:
            if not again:  # all of them at the same time
                count = judge.NUDGES + 1
                folder, groups = trained.folder / "again", [[rank] for rank in range(count)]
                outcomes = self._of(
                    trained.case, dict(trained.kwargs), folder, groups, list(range(count)), CASE_SECONDS
                )
                errors = [outcome.error for ranks in outcomes for outcome in ranks if outcome.error]
                assert not errors, f"{trained.label()} once more on one rank: {errors[0]}"
                again.extend(folder / f"1.{number}" for number in range(count))
            return again[nudge]

        return judge.judge(trained.one, trained.several, alone, TOLERANCE)

    def judges(self, case: Case, sizes: Sequence[int]) -> bool:
        """Whether a `case` on worlds of these `sizes` can be judged."""
        return 1 in sizes and max(sizes) > 1 and named.label(case) not in OTHER_ON_ONE_RANK

    def asked(self, request: pytest.FixtureRequest) -> Callable[[], None]:
        """What hears of `compare.same`, which a test calls where answers must be those of one rank."""
        return lambda: judged(self, request.node.user_properties)

    def forget(self) -> None:
        """Leave out what waits, and remove records."""
        for trained in self.waiting:
            shutil.rmtree(trained.folder, ignore_errors=True)
        self.waiting.clear()

    def close(self) -> None:
        """Remove all that was written."""
        shutil.rmtree(self._home, ignore_errors=True)
        shutil.rmtree(self._pool.environ[starting.RECORD], ignore_errors=True)

    def _of(self, case: Case, kwargs: Any, folder: Path, groups: Any, nudges: list[int], seconds: float) -> Any:
        wrapped = {"case": named.path_of(case), "kwargs": kwargs, "folder": str(folder), "nudges": nudges}
        os.makedirs(folder, exist_ok=True)
        return self._pool.run(RECORDED, groups, wrapped, seconds)


def judged(recorded: Recorded, properties: list[tuple[str, object]]) -> None:
    """A test has found the answers of all that waits to be those of one rank: so must `matex-tf verify`."""
    waiting, recorded.waiting = recorded.waiting, []
    for trained in waiting:
        found = recorded.judge(trained)
        shutil.rmtree(trained.folder, ignore_errors=True)
        if found is None:
            properties.append(("verify", f"trains nothing: {trained.label()}"))
            continue
        verdict = "same" if found.same else "NOT the same" if found.repeats else "does not repeat itself"
        properties.append(("verify", f"{verdict}: {trained.label()}"))
        assert found.same, f"matex-tf verify cries wolf: {verdict}: {trained.label()}\n" + described(found)


def described(found: judge.Judgement) -> str:
    """What a judgement rests on, for a reader."""
    lines = [
        f"{kind}: {one.largest:.2g} in {one.where}, step {one.step}; above rounding from step {one.first}"
        for kind, one in found.found.found.items()
        if one.compared
    ]
    return "\n".join([*lines, *found.found.unequal, f"left out: {sorted(found.found.left_out)}"])


def said(report: Any) -> list[str]:
    """What was said of the cases of a test that it has run."""
    properties = report.user_properties if report.when == "call" else ()
    return [str(value) for name, value in properties if name == "verify"]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What `matex-tf verify` has said of a case, as it comes."""
    for line in said(report) if not os.environ.get("PYTEST_XDIST_WORKER") else ():
        print(f"\n{report.nodeid}: {line}", flush=True)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What `matex-tf verify` has said of all cases."""
    reports = [one for kind in ("passed", "failed") for one in terminalreporter.stats.get(kind, [])]
    terminalreporter.write_line(summary(reports))


def summary(reports: Sequence[Any]) -> str:
    """How many cases were judged, and how."""
    counts = collections.Counter(line.partition(":")[0] for report in reports for line in said(report))
    total = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    return f"matex-tf verify, of cases with the answer of one rank: {total or 'none'}"
