"""pytest on several ranks: one job in which tests fail on one rank, and what the report of rank 0 makes of it."""

import re
from types import SimpleNamespace

import pytest
from jobs import LAUNCHER, Job

from matex_tf.pytest_plugin import merged

pytestmark = pytest.mark.timeout(150)

#: Tests of a user: `step` stands for a step of a training, in which all ranks meet.
SUITE = """
import random
from pathlib import Path
import pytest
import matex_tf

def step(number=0):
    matex_tf.init().barrier(f"take step {number}")

def test_fine():
    step()

def test_one_rank_fails_first():
    if matex_tf.rank() == 1:
        raise ValueError("only on rank 1")
    for number in range(3):
        step(number)

def test_is_in_step_again():
    random.random()
    step(5)

def test_one_rank_fails_later():
    step(1)
    random.random()
    if matex_tf.rank() == 1:
        raise KeyError("after one step")
    random.random()
    with pytest.raises(matex_tf.errors.RanksDisagree):
        step(2)
    step(3)

def test_random_numbers_are_alike_again():
    numbers = matex_tf.init().allgather(random.random(), "compare")
    assert numbers[0] == numbers[1]

def test_all_ranks_fail():
    step()
    assert matex_tf.rank() > 1

@pytest.fixture
def broken():
    if matex_tf.rank() == 0:
        raise OSError("fixture of rank 0")

def test_set_up(broken):
    step()

def test_directory_is_the_same(tmp_path):
    paths = matex_tf.init().allgather(str(tmp_path), "compare")
    assert len(set(paths)) == 1 and Path(paths[0]).is_dir()

def test_skipped():
    pytest.skip("for a reason")
"""


def test_one_report(tmp_path):
    (tmp_path / "test_user.py").write_text(SUITE)
    command = [
        LAUNCHER,
        "run",
        "-n",
        "2",
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--color=no",
        "--junitxml=x.xml",
        ".",
    ]
    ended = Job(command, tmp_path).end(120)
    assert ended.code == 1, ended.err + ended.out
    assert re.search(r"3 failed, 4 passed, 1 skipped, 1 error in ", ended.out), ended.out
    assert ended.out.count("test session starts") == 1
    for line in (
        "every test runs on 2 ranks",
        "FAILED test_user.py::test_one_rank_fails_first - ValueError: only on rank 1",
        "FAILED test_user.py::test_one_rank_fails_later - KeyError: 'after one step'",
        "FAILED test_user.py::test_all_ranks_fail - assert 0 > 1",
        "ERROR test_user.py::test_set_up - OSError: fixture of rank 0",
        "failed on rank 1 of 2; rank 0 stopped, as the ranks had gone different ways",
        "failed on ranks 0-1 of 2",
        "failed on rank 0 of 2; fine on rank 1",
    ):
        assert line in ended.out, line
    assert (tmp_path / "x.xml").read_text().count("<testcase ") == 9


def test_ranks_must_collect_the_same(tmp_path):
    (tmp_path / "test_user.py").write_text(
        "import matex_tf\nif matex_tf.rank() == 0:\n    def test_here(): pass\ndef test_both(): pass\n"
    )
    ended = Job([LAUNCHER, "run", "-n", "2", "-m", "pytest", "-p", "no:cacheprovider", "."], tmp_path).end(120)
    assert ended.code == 4, ended.err + ended.out
    assert "rank 0 has collected 2 tests and rank 1 1; test_user.py::test_here is not on both" in ended.err


def report(when, outcome, message="", disagrees=False):
    crash = SimpleNamespace(message=message)
    return SimpleNamespace(
        when=when,
        outcome=outcome,
        failed=outcome == "failed",
        ranks_disagree=disagrees,
        sections=[],
        longrepr=SimpleNamespace(reprcrash=crash),
        longreprtext=message,
    )


def test_the_cause_comes_before_what_follows_from_it():
    fine = [report("setup", "passed"), report("teardown", "passed")]
    ranks = [
        [fine[0], report("call", "failed", "went apart", True), fine[1]],
        [fine[0], report("call", "failed", "the cause"), fine[1]],
        [fine[0], report("call", "failed", "another cause"), fine[1]],
        [fine[0], report("call", "passed"), fine[1]],
    ]
    call = merged(ranks)[1]
    assert call.longreprtext == "the cause"
    assert call.sections == [
        ("ranks", "failed on ranks 1-2 of 4; rank 0 stopped, as the ranks had gone different ways; fine on rank 3"),
        ("rank 2", "another cause"),
    ]


def test_a_set_up_that_fails_on_one_rank_leaves_no_call():
    fine = [report("setup", "passed"), report("call", "passed"), report("teardown", "passed")]
    broken = [report("setup", "failed", "no"), report("teardown", "passed")]
    assert [(r.when, r.outcome) for r in merged([fine, broken])] == [("setup", "failed"), ("teardown", "passed")]
