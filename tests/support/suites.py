"""Run other projects' own tests on several ranks, from a checkout of theirs; nothing of them is in this repository.

    python tests/support/suites.py horovod PATH_OF_CHECKOUT [-n 2] [-k EXPRESSION] [--file NAME]
    python tests/support/suites.py keras PATH_OF_CHECKOUT
    python tests/support/suites.py tf_keras PATH_OF_CHECKOUT

A suite is a module suite_NAME beside this file, with

    FILES       the files of tests, as paths in the checkout; each is a job of its own
    TOGETHER    whether files of one folder are one job instead, which starts once; may be left out
    NEEDS       packages that the tests import, beside those that this project's own tests need
    OPTIONAL    packages that some tests import, which are skipped without, and for each the files that all need it; may
                be left out
    EXPECTED    tests that do not pass, "file.py::Class::test", and why, in one line each
    ARGUMENTS   more of them for pytest, in which {checkout} stands for its path; may be left out
    CHANGES     regular expressions, and what takes the place of what they match in the files of tests, which are copied
                then; may be left out
    prepare(checkout)   called on each rank before pytest
    meet(name)          called on each rank after each test: returns when all ranks have come

A test passes where it passes on every rank. The exit code is 1 where a test fails that is not in EXPECTED, or one
passes that is in it. A test that hangs or takes its ranks down fails, and the others go on in a new job.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
QUIET_SECONDS = float(os.environ.get("MATEX_SUITE_SECONDS", "240"))  # without news of any test, of a job that hangs
LAUNCHER = str(Path(sys.executable).parent / "matex-tf")


@dataclasses.dataclass
class Result:
    """What became of a test, on all ranks.

    Attributes:
        outcome: "passed", "failed" or "skipped".
        why: of the first rank where it failed or was skipped.
        subtests: how many of its subtests failed, on that rank.
    """

    outcome: str
    why: str = ""
    subtests: int = 0


def read_records(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """What the ranks have written so far, by rank."""
    records = {}
    for path in sorted(folder.glob("rank*.jsonl")):
        lines = path.read_text().splitlines(keepends=True)
        records[int(path.stem[4:])] = [json.loads(line) for line in lines if line.endswith("\n")]
    return records


def merged(records: dict[int, list[dict[str, Any]]], ranks: int) -> tuple[dict[str, Result], set[str]]:
    """Results of tests that have ended on all ranks; tests that were begun and have not."""
    begun: dict[str, None] = {}
    ended: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for rank, lines in records.items():
        for line in lines:
            begun[line["test"]] = None
            if "outcome" in line:
                ended.setdefault(line["test"], []).append((rank, line))
    results = {}
    for test, said in ended.items():
        if len(said) < ranks:
            continue
        worst = min(said, key=lambda one: (["failed", "passed", "skipped"].index(one[1]["outcome"]), one[0]))
        rank, line = worst
        why = f"rank {rank}: {line['why']}" if line["outcome"] == "failed" else line["why"]
        results[test] = Result(line["outcome"], why, line["subtests"])
    return results, {test for test in begun if test not in results}


def run_files(suite: str, checkout: Path, files: list[str], ranks: int, expression: str) -> dict[str, Result]:
    """Run the tests of some files of one folder, in as many jobs as it takes."""
    results: dict[str, Result] = {}
    while True:
        with tempfile.TemporaryDirectory(prefix="matex-suite-") as name:
            folder = Path(name)
            (folder / "done.json").write_text(json.dumps(sorted(results)))
            command = [LAUNCHER, "run", "-n", str(ranks), str(HERE / "suite_rank.py"), suite, str(checkout)]
            log = folder / "log.txt"
            with log.open("w") as out:
                job = subprocess.Popen(
                    [*command, str(folder), expression, *files],
                    cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                    env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
                )  # fmt: skip
            hung = _wait(job, folder)
            text = log.read_text(errors="replace")
            new, unfinished = merged(read_records(folder), ranks)
            over = (folder / "over").exists()
        results.update(new)
        for test in unfinished:
            why = "no end in sight" if hung else f"the job ended with {job.returncode}: {_last_words(text)}"
            results[test] = Result("failed", why)
        if over and not unfinished:
            return results
        if not new and not unfinished:
            raise SystemExit(f"the ranks ran no test of {', '.join(files)}:\n{text[-4000:]}")


def _wait(job: subprocess.Popen[Any], folder: Path) -> bool:
    """Wait for the end of a job; whether it was killed, as no test had begun or ended for long."""
    size, since = -1, time.monotonic()
    while job.poll() is None:
        now = sum(path.stat().st_size for path in folder.glob("rank*.jsonl"))
        if now != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > QUIET_SECONDS:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            return True
        time.sleep(0.2)
    return False


def _last_words(text: str) -> str:
    lines = [line for line in text.splitlines() if "Error" in line]
    return lines[-1].strip()[:300] if lines else "(nothing said)"


def absent_for(file: str, optional: dict[str, tuple[str, ...]]) -> list[str]:
    """Packages that a file of tests needs and that are not installed; `optional` is a suite's OPTIONAL."""
    return [name for name, files in optional.items() if file in files and importlib.util.find_spec(name) is None]


@contextlib.contextmanager
def checked_out(checkout: Path, files: list[str], changes: tuple[tuple[str, str], ...]) -> Iterator[Path]:
    """A checkout, or a folder with copies of its files of tests in which something is changed; see CHANGES."""
    if not changes:
        yield checkout
        return
    with tempfile.TemporaryDirectory(prefix="matex-suite-") as name:
        for file in files:
            text, copy = (checkout / file).read_text(), Path(name) / file
            for pattern, replacement in changes:
                text = re.sub(pattern, replacement, text)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text)
        yield Path(name)


def report(results: dict[str, Result], expected: dict[str, str], whole: bool) -> int:
    """Print what came of it; the exit code.

    Args:
        expected: see EXPECTED.
        whole: whether all tests were run, so that each of `expected` must be among them.
    """
    counts = {kind: sum(r.outcome == kind for r in results.values()) for kind in ("passed", "failed", "skipped")}
    wrong = 0
    for test, result in results.items():
        if result.outcome == "failed":
            known = expected.get(test)
            wrong += known is None
            subtests = f" ({result.subtests} subtests)" if result.subtests else ""
            print(f"{'expected' if known else 'FAILED  '}  {test}{subtests}\n          {known or result.why}")
        elif test in expected and result.outcome == "passed":
            wrong += 1
            print(f"PASSED    {test}\n          and the table has it as: {expected[test]}")
    for test in sorted(set(expected) - set(results)) if whole else ():
        wrong += 1
        print(f"NOT THERE {test}\n          and the table has it as: {expected[test]}")
    print(f"{counts['passed']} passed, {counts['skipped']} skipped, {counts['failed']} failed, {wrong} not as expected")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = sorted(path.stem.removeprefix("suite_") for path in HERE.glob("suite_*.py"))
    parser.add_argument("suite", choices=[name for name in names if name != "rank"])
    parser.add_argument("checkout", type=Path, help="a checkout of the project")
    parser.add_argument("-n", type=int, default=2, dest="ranks", help="ranks")
    parser.add_argument("-k", default="", dest="expression", help="of pytest: the tests to run")
    parser.add_argument("--file", help="run this file of the suite alone")
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    suite = importlib.import_module(f"suite_{options.suite}")
    lacking = [name for name in suite.NEEDS if importlib.util.find_spec(name) is None]
    if lacking:
        raise SystemExit(f"the suite of {options.suite} needs more packages: pip install {' '.join(lacking)}")
    files = [file for file in suite.FILES if options.file in (None, file, Path(file).name)]
    results: dict[str, Result] = {}
    expected = dict(suite.EXPECTED)
    jobs: dict[str, list[str]] = {}
    for file in files:
        if absent := absent_for(file, getattr(suite, "OPTIONAL", {})):
            print(f"{file}: left out, as it needs {' and '.join(absent)}", flush=True)
            expected = {test: why for test, why in expected.items() if not test.startswith(f"{file}::")}
            continue
        if not (options.checkout / file).exists():
            raise SystemExit(f"{options.checkout} has no {file}: it must be a checkout of {options.suite}.")
        jobs.setdefault(str(Path(file).parent) if getattr(suite, "TOGETHER", False) else file, []).append(file)
    with checked_out(options.checkout.resolve(), files, getattr(suite, "CHANGES", ())) as checkout:
        for job in jobs.values():
            found = run_files(options.suite, checkout, job, options.ranks, options.expression)
            results.update(found)
            for file in job:
                mine = [r for test, r in found.items() if Path(test.partition("::")[0]).name == Path(file).name]
                print(f"{file}: {sum(r.outcome == 'passed' for r in mine)} of {len(mine)} passed", flush=True)
    return report(results, expected, not options.expression and len(files) == len(suite.FILES))


if __name__ == "__main__":
    sys.exit(main())
