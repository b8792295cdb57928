"""The fixture `ranks`: run a case on worlds of several sizes, in ranks that are started once a session."""

from __future__ import annotations

import collections
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import compare
import pytest
import warm
from pool import CASE_SECONDS, Case, Outcome, Pool, plan

from tests.support import cases, named

HERE = Path(__file__).resolve().parent

named.stand_in(cases)
for folder in sorted((HERE / "features").glob("*/cases")):
    named.stand_in(importlib.import_module(f"tests.features.{folder.parent.name}.cases"))

# Images set it, and each process that a test starts would compile this package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

WAITING = ("faults", "launch")  # the longest first
COMPUTING = ("features", "same_answer", "unit", "readers")
GRADIENTS = "exchange gradients"
#: What ranks meet for in a partitioned step: that of metrics and logs too.
IN_STEPS = ("exchange gradients and sums", "join rows")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sizes",
        default=os.environ.get("MATEX_TEST_SIZES", ""),
        help="world sizes for cases that leave them open, such as 1,3 (default: MATEX_TEST_SIZES, or 1,2)",
    )
    parser.addoption(
        "--schedule",
        default="",
        choices=("", "chained", "funneled", "concurrent"),
        help="run all cases with this schedule, and with buckets of 256 bytes",
    )
    parser.addoption("--slurm", action="store_true", help="run the tests on an emulated Slurm cluster too")
    parser.addoption(
        "--all",
        action="store_true",
        help="every variant of the tests that have a mark `variants`, on 1 and 3 ranks",
    )
    parser.addoption(
        "--verify",
        action="store_true",
        help="hold cases whose answer is that of one rank against matex-tf verify, see scripts/verify_cases",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests with a mark `variants(n)` run the first n variants, and files in the order of `in_turn`."""
    items[:] = in_turn(items)
    if config.getoption("--all") or config.getoption("keyword") or any("[" in arg for arg in config.args):
        return
    kept, left, seen = [], [], collections.Counter[str]()
    for item in items:
        mark = item.get_closest_marker("variants")
        name = item.nodeid.partition("[")[0]
        seen[name] += 1
        (kept if mark is None or seen[name] <= mark.args[0] else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def in_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """Tests in an order in which those that wait (for a rank's death, for jobs to start) run beside those that compute.

    Each file of a waiting room is followed by two of the others; files that take long come before those that do not, so
    that no process of xdist is left with a long one when the others have ended.
    """
    files: dict[str, dict[Path, list[pytest.Item]]] = {room: {} for room in (*WAITING, *COMPUTING)}
    for item in items:
        files[item.path.relative_to(HERE).parts[0]].setdefault(item.path, []).append(item)
    waiting, computing = (
        collections.deque(file for room in rooms for file in files[room].values()) for rooms in (WAITING, COMPUTING)
    )
    ordered: list[pytest.Item] = []
    while waiting or computing:
        for queue in (waiting, computing, computing):
            if queue:
                ordered += queue.popleft()
    return ordered


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Bring up a Slurm cluster only where that was asked for: it takes minutes."""
    if item.get_closest_marker("slurm") and not item.config.getoption("--slurm"):
        pytest.skip("scripts/test --slurm runs it")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slurm: needs an emulated Slurm cluster, run with --slurm")
    config.addinivalue_line("markers", "variants(n): without --all and -k, only the first n variants are run")
    config.addinivalue_line("markers", "smoke: tried with the oldest TensorFlow and Python in every run of .ci/run")
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(WarmServer())
    if config.getoption("--verify"):
        config.pluginmanager.register(importlib.import_module("tests.features.verify.verified"), "verified")
    if schedule := config.getoption("--schedule"):
        os.environ.update(MATEX_SCHEDULE=schedule, MATEX_BUCKET_MB="1", MATEX_TEST_BUCKET_BYTES="256")


class Ranks:
    """Runs cases; what the fixture `ranks` gives."""

    def __init__(self, pool: Pool, sizes: tuple[int, ...], recorded: Any = None):
        self._pool = pool
        self.sizes = sizes
        self.recorded = recorded
        self.last: dict[int, list[Outcome]] = {}

    def __call__(
        self, case: Case, sizes: Sequence[int] | None = None, *, meets: str = GRADIENTS, apart: str = "", **kwargs: Any
    ) -> dict[int, list[Any]]:
        """Run a case and give, for each size, what each rank returned.

        Args:
            case: a function of tests/support/cases.
            sizes: of the worlds; where the test leaves them open, those of the session.
            meets: a purpose for which ranks of more than one must have met, "" for any: without it ranks that each do
                the whole work alone would pass every comparison.
            apart: why the ranks need not meet at all, where that is so.
            kwargs: arguments of the function.
        """
        outcomes = self.outcomes(case, sizes, **kwargs)
        failed = [o for size in outcomes.values() for o in size if o.error]
        if failed:
            pytest.fail(describe(case, outcomes), pytrace=False)
        for size, ranks in outcomes.items():
            for outcome in ranks:
                if size > 1 and not apart:
                    met = [what for what in outcome.calls if meets in what or what.startswith(IN_STEPS)]
                    what = meets or "do anything"
                    assert met, f"rank {outcome.rank} of {size} never met the others to {what}: {outcome.calls}"
        return {size: [outcome.value for outcome in ranks] for size, ranks in outcomes.items()}

    def outcomes(
        self, case: Case, sizes: Sequence[int] | None = None, seconds: float = CASE_SECONDS, **kwargs: Any
    ) -> dict[int, list[Outcome]]:
        """The same, with the outcome of each rank, errors among them."""
        outcomes: dict[int, list[Outcome]] = {}
        sizes = sizes or self.sizes
        if self.recorded is not None and self.recorded.judges(case, sizes):
            outcomes = self.recorded.run(case, sizes, kwargs, seconds)
        for groups in () if outcomes else plan(sizes):
            for group, result in zip(groups, self._pool.run(case, groups, kwargs, seconds), strict=True):
                outcomes[len(group)] = result
        if os.environ.get("MATEX_TEST_TIMES"):
            print(
                named.label(case),
                {size: [(round(o.seconds, 1), round(o.cpu, 1)) for o in r] for size, r in outcomes.items()},
            )
        for size, result in outcomes.items():
            assert [(o.rank, o.size) for o in result] == [(rank, size) for rank in range(size)]
        self.last = dict(sorted(outcomes.items()))
        return self.last

    def refused(
        self, case: Case, sizes: Sequence[int] | None = None, *, error: str = "MatexError", **kwargs: Any
    ) -> dict[int, list[str]]:
        """Run a case in which every rank must raise `error`; for each size, each rank's message."""
        outcomes = self.outcomes(case, sizes, **kwargs)
        for ranks in outcomes.values():
            for outcome in ranks:
                if error not in outcome.kinds:
                    pytest.fail(f"every rank should have raised {error}\n{describe(case, outcomes)}", pytrace=False)
        return {size: [outcome.error or "" for outcome in ranks] for size, ranks in outcomes.items()}


def describe(case: Case, outcomes: dict[int, list[Outcome]]) -> str:
    """What every rank made of a case, errors that several ranks share only once."""
    lines = [named.label(case)]
    seen: dict[str, str] = {}
    for size, ranks in outcomes.items():
        for outcome in ranks:
            name = f"rank {outcome.rank} of {size}"
            if not outcome.error:
                lines.append(f"--- {name}: fine after {outcome.seconds:.1f} s; returned {str(outcome.value)[:300]}")
                continue
            lines.append(f"--- {name}: {outcome.error}")
            same = f"{size} {outcome.error}"
            if same in seen and outcome.ended:
                lines.append(f"(traceback and output like those of {seen[same]})")
                continue
            seen[same] = name
            lines += [outcome.traceback, f"output of {name}:\n{outcome.output[-3000:]}" if outcome.output else ""]
            if outcome.calls:
                lines.append(f"met: {outcome.calls}")
    return "\n".join(line for line in lines if line)


class WarmServer:
    """One server for all processes of xdist: the first of them starts it, and stops it in the end."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="matex-warm-"))
        self._server = warm.Server(self._folder / "socket")

    def pytest_configure_node(self, node: Any) -> None:
        """xdist starts a process."""
        node.workerinput["warm"] = str(self._server.path)

    def pytest_unconfigure(self) -> None:
        """All is over."""
        self._server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[warm.Client]:
    """Forks ranks that have imported TensorFlow."""
    if running := getattr(request.config, "workerinput", {}).get("warm"):
        client = warm.Client(Path(running))
        client.wait()
        yield client
        return
    with warm.Server(tmp_path_factory.mktemp("warm") / "socket") as mine:
        yield mine


@pytest.fixture(scope="session")
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """The four ranks."""
    verified = request.config.pluginmanager.get_plugin("verified")
    ranks = verified.recording_pool() if verified else Pool()
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def any_ranks(pool: Pool, request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """What `ranks` is for fixtures that serve several tests."""
    text = request.config.getoption("--sizes")
    sizes = (1, 3) if request.config.getoption("--all") else (1, 2)
    verified = request.config.pluginmanager.get_plugin("verified")
    recorded = verified.Recorded(pool) if verified else None
    yield Ranks(pool, tuple(int(size) for size in text.split(",")) if text else sizes, recorded)
    if recorded is not None:
        recorded.close()


@pytest.fixture
def ranks(any_ranks: Ranks, request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Run a case on worlds of several sizes: `ranks(models.gan, (1, 3), argument=…)`.

    Where a test leaves them open, it runs on 1 and 2 ranks, with `--all` on 1 and 3: a rank is a third of the work.
    """
    if any_ranks.recorded is None:
        yield any_ranks
        return
    any_ranks.recorded.forget()
    compare.hearing[:] = [any_ranks.recorded.asked(request)]
    yield any_ranks
    compare.hearing.clear()


@pytest.fixture
def first_of(request: pytest.FixtureRequest) -> Callable[[dict[str, Any], int], dict[str, Any]]:
    """What `variants` is for forms that a test tries in one case: `first_of(WAYS, 3)` has three, with `--all` all."""

    def chosen(ways: dict[str, Any], count: int) -> dict[str, Any]:
        return ways if request.config.getoption("--all") else dict(list(ways.items())[:count])

    return chosen


@pytest.fixture(scope="session")
def bare_pool() -> Iterator[Pool]:
    """Four ranks that know the runtime's world but not Keras: quick to start, so good to break."""
    ranks = Pool(bare=True)
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def bare_ranks(bare_pool: Pool) -> Ranks:
    """The same for cases that need no Keras."""
    return Ranks(bare_pool, (1, 3))


@pytest.fixture(scope="session")
def seven_ranks() -> Iterator[Ranks]:
    """Seven ranks that know no Keras: more than there are cores, and a number that divides nothing."""
    ranks = Pool(ranks=7, bare=True)
    yield Ranks(ranks, (7,))
    ranks.close()
