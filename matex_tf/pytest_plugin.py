"""pytest on many ranks: `matex-tf run -n 4 -m pytest tests/` runs the same tests on every rank and prints one report.

`run` hands this plugin to pytest. The ranks meet after each test and tell one another how it went, so a test
that fails on one rank fails in the report of rank 0, and the next test begins on all ranks together. The report, the
exit code and what `-x` and `--maxfail` count are the same on every rank.

Relies on: pytest's hooks, `pytest.TempPathFactory.mktemp` (public) and `_pytest.runner.runtestprotocol` (which other
plugins that run tests themselves rely on too; pytest 7 to 9).
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wrapt
from _pytest.runner import runtestprotocol

from matex_tf import errors
from matex_tf.core import world as world_module
from matex_tf.core.mismatch import name_ranks
from matex_tf.core.world import World
from matex_tf.errors import RanksDisagree

#: How often a rank that has ended its test finds the others in a step of theirs, before it gives up.
_MOST_STEPS = 1000

_PHASES = ("setup", "call", "teardown")


def pytest_configure(config: pytest.Config) -> None:
    """Let the ranks meet between tests, where there are several."""
    world = world_module.current()
    if world.is_single:
        return
    if getattr(config.option, "numprocesses", None):
        raise pytest.UsageError(
            "pytest-xdist (-n) starts processes that are not ranks: leave it out under matex-tf run."
        )
    if world.rank and getattr(config.option, "xmlpath", None):
        config.option.xmlpath = None  # one rank writes the file
    config.pluginmanager.register(Ranks(config, world), "matex_tf_ranks")


class Ranks:
    """The plugin of a job of several ranks."""

    def __init__(self, config: pytest.Config, world: World):
        self._config = config
        self._world = world
        self._broken: dict[str, str] = {}
        self._mktemp = pytest.TempPathFactory.mktemp
        wrapt.wrap_function_wrapper(pytest.TempPathFactory, "mktemp", self._same_directory)

    def pytest_report_header(self) -> str:
        return f"matex_tf: every test runs on {self._world.size} ranks"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._broken[report.nodeid] = report.longreprtext

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        """See that all ranks have the same tests, and give them the order of rank 0."""
        ids = [item.nodeid for item in session.items]
        everyone = self._gather((ids, self._broken), "compare the tests that were collected")
        first, broken_first = everyone[0]
        for rank, (theirs, broken) in enumerate(everyone):
            if broken.keys() != broken_first.keys():
                raise pytest.UsageError(_collected_differently(everyone))
            if apart := sorted((Counter(theirs) - Counter(first)) + (Counter(first) - Counter(theirs))):
                raise pytest.UsageError(
                    f"rank 0 has collected {len(first)} tests and rank {rank} {len(theirs)}; {apart[0]} is not on "
                    "both. Which tests there are must not depend on the rank, the host or the time."
                )
        places = {name: place for place, name in enumerate(first)}
        session.items.sort(key=lambda item: places[item.nodeid])
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test, and report what it was on all ranks.

        Args:
            item: the test.
            nextitem: the one after it, from which pytest knows what to tear down; None for the last.
        """
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        mine = [hook.pytest_report_to_serializable(config=self._config, report=report) for report in reports]
        everyone = self._gather((item.nodeid, mine), "end a test")
        other = next((name for name, _ in everyone if name != item.nodeid), None)
        if other is not None:
            pytest.exit(f"the ranks are at different tests: {item.nodeid} and {other}", returncode=3)
        read = [
            [hook.pytest_report_from_serializable(config=self._config, data=data) for data in theirs]
            for _, theirs in everyone
        ]
        for report in merged(read):
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if any(_outcomes(theirs) != _outcomes(read[0]) or any(r.ranks_disagree for r in theirs) for theirs in read):
            self._align()
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
        """Note which failures only say that another rank has failed.

        Args:
            item: the test.
            call: one of its phases, with the error that it has raised.
        """
        report: Any = yield
        report.ranks_disagree = call.excinfo is not None and _is_disagreement(call.excinfo.value)
        errors.remember(None)
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Leave together, once rank 0 has printed its report."""
        pytest.TempPathFactory.mktemp = self._mktemp  # type: ignore[method-assign]
        self._gather(None, "end the tests")

    def _gather(self, value: Any, what: str) -> list[Any]:
        """Every rank's value, also where others are still in a test that fails once it finds this rank elsewhere."""
        for _ in range(_MOST_STEPS):
            self._world.at("")  # of a step that did not come to its end
            try:
                return self._world.allgather(value, what)
            except RanksDisagree as error:
                last = error
        raise last

    def _same_directory(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Path:
        """`tmp_path` and what else is made by pytest's factory: the directory of rank 0 on every rank."""
        path = wrapped(*args, **kwargs) if self._world.rank == 0 else None
        shared: Path = self._world.broadcast(path, "share a temporary directory")
        shared.mkdir(parents=True, exist_ok=True)  # where the file system is not that of rank 0
        return shared

    def _align(self) -> None:
        """Let all ranks go on alike, where some of them have left a test in its middle: random numbers, and the names
        that Keras makes up for layers."""
        python, numpy = self._world.broadcast((random.getstate(), np.random.get_state()), "share random states")
        random.setstate(python)
        np.random.set_state(numpy)
        if "keras" in sys.modules:
            sys.modules["keras"].backend.clear_session()


def merged(everyone: Sequence[Sequence[Any]]) -> list[Any]:
    """One report for each phase of a test, from those of all ranks.

    Args:
        everyone: for each rank, its reports; a rank whose set-up has failed has none of the call.
    """
    result = []
    for phase in _PHASES:
        reports = {rank: report for rank, theirs in enumerate(everyone) for report in theirs if report.when == phase}
        if not reports:
            continue
        failed = {rank: report for rank, report in reports.items() if report.failed}
        if not failed:
            result.append(next(iter(reports.values())))
            continue
        causes = {rank: report for rank, report in failed.items() if not report.ranks_disagree} or failed
        first, *others = causes
        report = causes[first]
        report.sections.append(("ranks", _who(list(causes), list(failed), list(reports), len(everyone))))
        said = {_last_line(report)}
        for rank in others:
            if _last_line(causes[rank]) not in said:
                said.add(_last_line(causes[rank]))
                report.sections.append((f"rank {rank}", causes[rank].longreprtext))
        result.append(report)
        if phase == "setup":
            result += [theirs for theirs in everyone[first] if theirs.when == "teardown"]
            break
    return result


def _outcomes(reports: Sequence[Any]) -> list[tuple[str, str]]:
    return [(report.when, report.outcome) for report in reports]


def _who(causes: Sequence[int], failed: Sequence[int], ran: Sequence[int], size: int) -> str:
    """Which ranks have failed, in a line."""
    text = f"failed on {name_ranks(causes)} of {size}"
    stopped = [rank for rank in failed if rank not in causes]
    fine = [rank for rank in ran if rank not in failed]
    if stopped:
        text += f"; {name_ranks(stopped)} stopped, as the ranks had gone different ways"
    if fine:
        text += f"; fine on {name_ranks(fine)}"
    return text


def _last_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash is not None else report.longreprtext.strip().rpartition("\n")[2]


def _is_disagreement(error: BaseException) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, RanksDisagree):
            return True
        seen = seen.__cause__ or seen.__context__
    return type(error).__module__.startswith("tensorflow") and isinstance(errors.remembered(), RanksDisagree)


def _collected_differently(everyone: Sequence[tuple[list[str], dict[str, str]]]) -> str:
    for rank, (_, broken) in enumerate(everyone):
        for nodeid, text in broken.items():
            missing = [other for other, (_, theirs) in enumerate(everyone) if nodeid not in theirs]
            if missing:
                return f"{nodeid} could not be collected on rank {rank}, and could on {name_ranks(missing)}:\n{text}"
    raise AssertionError("the ranks differ in nothing")
