"""One rank of a suite of another project (see suites.py): pytest, with a line of JSON for each test."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest


class Recorder:
    """Writes what became of each test, and lets the ranks meet after it.

    Args:
        module: the suite's.
        path: the file to write.
        done: tests that need not run again.
    """

    def __init__(self, module: Any, path: Path, done: set[str]):
        self.module, self.done = module, done
        self._file = path.open("w", buffering=1)
        self._outcome, self._why, self._subtests = "passed", "", 0

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid not in self.done]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._outcome, self._why, self._subtests = "passed", "", 0
        self._file.write(json.dumps({"test": nodeid}) + "\n")

    def pytest_runtest_logreport(self, report: Any) -> None:
        subtest = hasattr(report, "context")
        if report.failed and (absent := self._absent(report)):
            self._outcome, self._why = "skipped", f"{absent} is not installed"
        elif report.failed:
            self._subtests += subtest
            if self._outcome != "failed":
                crash = getattr(report.longrepr, "reprcrash", None)
                text = crash.message if crash else str(report.longrepr)
                self._outcome, self._why = "failed", " ".join(text.split())[:500]
        elif report.skipped and self._outcome == "passed" and not subtest:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._outcome, self._why = "skipped", reason

    def _absent(self, report: Any) -> str:
        """The package for lack of which a test has failed, where it is one that the suite can do without."""
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash else ""
        optional = getattr(self.module, "OPTIONAL", ())
        return next((name for name in optional if text == f"ModuleNotFoundError: No module named '{name}'"), "")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        record = {"test": nodeid, "outcome": self._outcome, "why": self._why, "subtests": self._subtests}
        self._file.write(json.dumps(record) + "\n")
        self.module.meet(nodeid)


def main(suite: str, checkout: str, folder: str, expression: str, *files: str) -> int:
    """Run the tests of some files of one folder."""
    from matex_tf.core import world

    sys.path.insert(0, str(Path(__file__).resolve().parent))
    module = importlib.import_module(f"suite_{suite}")
    module.prepare(Path(checkout))
    done = set(json.loads((Path(folder) / "done.json").read_text()))
    rank = world.current().rank
    recorder = Recorder(module, Path(folder) / f"rank{rank}.jsonl", done)
    arguments = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:timeout", "-q", "--tb=short"]
    arguments += ["--rootdir", str(Path(checkout) / Path(files[0]).parent), "-c", "/dev/null"]
    arguments += [str(Path(checkout) / file) for file in files]
    arguments += [argument.format(checkout=checkout) for argument in getattr(module, "ARGUMENTS", ())]
    code = pytest.main([*arguments, *(["-k", expression] if expression else [])], plugins=[recorder])
    if code in (0, 1, 5):
        (Path(folder) / "over").touch()
        return 0
    return int(code)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
