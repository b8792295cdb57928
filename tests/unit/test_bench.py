"""What the figures of scripts/bench rest on: turns, the barrier, and the arithmetic. Its jobs are no MPI jobs."""

import os
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.step import report, turns

#: Two ranks, started by a process that stands for mpirun; each has a thread that never rests, as Horovod's.
RANKS = """
    import os, subprocess, sys, threading, time
    if len(sys.argv) == 1:
        ranks = [subprocess.Popen([sys.executable, __file__, str(rank)]) for rank in range(2)]
        sys.exit(max(rank.wait() for rank in ranks))
    os.environ.update(OMPI_COMM_WORLD_RANK=sys.argv[1], OMPI_COMM_WORLD_SIZE="2")
    sys.path.insert(0, {root!r})
    from benchmarks.step.turns import Rank

    def spin():
        while True:
            time.sleep(1e-4)

    threading.Thread(target=spin, daemon=True).start()
    rank = Rank()
    slow = 0.004 * (1 + rank.rank)
    work = lambda: time.sleep(slow)
    rank.serve({{"sleep": work, "lock": rank.lock_step(work)}}, 7)
"""


@pytest.fixture
def job(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(textwrap.dedent(RANKS.format(root=str(Path(__file__).parents[2]))))
    job = turns.Job("test", [sys.executable, str(script)], dict(os.environ), tmp_path, 2)
    yield job
    job.end()


def test_a_turn_is_the_slowest_ranks_mean(job):
    assert job.contestants == ["sleep", "lock"] and job.parameters() == 7
    assert 0.008 <= job.turn("sleep", 5) < 0.2
    assert job.turn("lock", 5) >= 0.008


def test_a_job_costs_nothing_between_its_turns(job):
    job.turn("sleep", 2)
    ranks = [psutil.Process(pid) for pid in job._pids]
    before = [sum(rank.cpu_times()[:2]) for rank in ranks]
    time.sleep(0.5)  # what is measured
    assert [rank.status() for rank in ranks] == [psutil.STATUS_STOPPED] * 2
    assert [sum(rank.cpu_times()[:2]) for rank in ranks] == before


def test_a_job_leaves_no_process_behind(job):
    ranks = [psutil.Process(pid) for pid in job._pids]
    job.end()
    assert not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks)


def test_a_job_that_fails_says_why(tmp_path):
    command = [sys.executable, "-c", "raise SystemExit('no such exchange')"]
    with pytest.raises(SystemExit, match="the job odd failed(.|\n)*no such exchange"):
        turns.Job("odd", command, dict(os.environ), tmp_path, 2)


def test_nobody_passes_the_barrier_early(tmp_path):
    passed = [0, 0, 0]

    def rank(number):
        barrier = turns.Barrier(str(tmp_path / "barrier"), number, 3)
        for count in range(200):
            barrier()
            seen.append(min(passed) >= count)  # who has come to this one has passed all before it
            passed[number] += 1

    seen: list[bool] = []
    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert passed == [200] * 3 and all(seen)


def test_overhead_is_over_the_lock_step_of_the_same_framework_in_the_same_round():
    measured = [
        report.Seconds("A", report.LOCK_STEP, [0.010, 0.020, 0.030]),
        report.Seconds("A", "ours", [0.011, 0.021, 0.032]),
        report.Seconds("B", report.LOCK_STEP, [0.005, 0.005, 0.005]),
        report.Seconds("B", report.HOROVOD, [0.009, 0.008, 0.010]),
    ]
    lock, ours, _, horovod = report.figures("small", 7, 2, 32, measured)
    assert lock.overhead == 0 and lock.of_horovod is None
    assert ours.overhead == pytest.approx(1) and ours.milliseconds == pytest.approx(21)
    assert horovod.overhead == pytest.approx(4) and horovod.of_horovod == 1
    assert ours.of_horovod == pytest.approx(0.25)
    assert ours.least == pytest.approx(1) and ours.least_of_horovod == pytest.approx(1 / 3)
