"""A running job that is watched while its ranks die."""

import os
import signal
import time

from jobs import LAUNCHER, MEET, Job

from matex_tf.watching import registry


def test_the_first_rank_dies(tmp_path):
    """Another rank answers in its place, under the same name, and says what has happened."""
    (tmp_path / "meet.py").write_text(MEET % (0, "pass"))
    watched = str(tmp_path / "state")
    job = Job([LAUNCHER, "run", "-n", "3", "--faults", "shrink", "--watch-dir", watched, "meet.py"], tmp_path)
    try:
        before = answer(watched, lambda state: state["alive"] == 3, job)
        entry = next(registry.entries(watched))
        assert before["script"] == "meet.py" and [rank["rank"] for rank in before["ranks"]] == [0, 1, 2]
        os.kill(before["ranks"][0]["pid"], signal.SIGKILL)
        after = answer(watched, lambda state: state["alive"] == 2, job)
        assert [rank["status"] for rank in after["ranks"]] == ["died", "runs", "runs"]
        said = sorted(what for _, what in after["events"])
        assert said[0].startswith("rank 0 on ") and said[1:] == ["the others continue: 2 ranks"]
        other = next(registry.entries(watched))
        assert other.name == entry.name and other.pid != entry.pid
    finally:
        job.stop()
        job.end()


def answer(watched, there, job):
    """What the job says of itself, as soon as it is so."""
    end = time.monotonic() + 60
    state = None
    while time.monotonic() < end and job.process.poll() is None:
        for entry in registry.entries(watched):
            try:
                state = registry.ask(entry)
            except OSError:  # of a rank that has died
                continue
            if there(state):
                return state
        time.sleep(0.05)
    raise AssertionError(f"{state}\n{job.process.poll()}")
