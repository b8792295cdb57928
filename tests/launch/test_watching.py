"""A running job that is watched while its ranks die."""

import json
import os
import signal
import subprocess
import time

import pytest
from jobs import LAUNCHER, MEET, Job

from benchmarks.hosts import Hosts, unavailable
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


@pytest.mark.variants(0)
@pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "can run")
def test_several_hosts(tmp_path):
    """Ranks of other hosts report too, and any host that has the user's directory can ask."""
    (tmp_path / "meet.py").write_text(MEET % (0, "pass"))
    watched = tmp_path / "state"
    with Hosts(2) as hosts:
        line = [*hosts.on(folder=tmp_path), LAUNCHER, "run", "-n", "2", "--hosts", "h1:1,h2:1"]
        job = Job([*line, "--watch-dir", str(watched), "meet.py"], tmp_path, **hosts.environ)
        try:
            asking = [*hosts.on("h2"), LAUNCHER, "top", "--json", "--watch-dir", str(watched)]
            end, seen = time.monotonic() + 60, None
            while time.monotonic() < end and (seen is None or seen["alive"] < 2):
                asked = subprocess.run(asking, capture_output=True, text=True)
                seen = json.loads(asked.stdout) if asked.returncode == 0 else None
            assert seen and [rank["host"] for rank in seen["ranks"]] == ["h1", "h2"], asked
        finally:
            job.stop()
            job.end()
