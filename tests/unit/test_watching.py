"""What a running job says of itself: the state that is gathered, who may ask for it, and what shows it."""

import contextlib
import json
import os
import socket
import time

import pytest

from matex_tf import settings
from matex_tf.core.world import World
from matex_tf.watching import job_state, progress, registry
from matex_tf.watching.meter import Meter
from matex_tf.watching.progress import Progress
from matex_tf.watching.reporter import Reporter


def counts(rank, seconds, step=0, *, wait=0.0, exchange=0.0, feed=0.0, generation=0, size=3, **more):
    """What a rank reports after some seconds."""
    return {
        **{"rank": rank, "host": "node1", "pid": 7, "generation": generation, "size": size},
        **{"step": step, "rows": 32 * step, "epoch": 2, "epochs": 3, "in_epoch": step % 10, "of_epoch": 10},
        **{"phase": "train", "time": 100.0 + seconds, "input": feed, "exchange": exchange, "wait": wait},
        **{"cpu": seconds / 2, "cores": 1, "memory": 10**8, "traced": 0.0, "traced_steps": 0},
        **more,
    }


def job(*everyone):
    """A job whose ranks have reported."""
    found = job_state.JobState("train.py", 3, time.time())
    for one in everyone:
        found.heard(one)
    return found


def test_speeds_and_shares():
    """Differences over the last seconds, and the time that is left from them."""
    both = [counts(rank, seconds, 2 * seconds, exchange=0.5 * seconds, feed=0.1 * seconds * rank)
            for rank in (0, 1) for seconds in range(15)]  # fmt: skip
    found = job(*both).public()
    assert found["steps_per_second"] == pytest.approx(2) and found["rows_per_second"] == pytest.approx(64)
    assert found["exchange"] == pytest.approx(0.5) and found["input"] == pytest.approx(0.1)
    assert found["alive"] == 2 and found["ranks"][1]["cpu"] == pytest.approx(0.5)
    # The second of three epochs of 10 steps, 8 of which are done: 12 are left, at two a second.
    assert (found["in_epoch"], found["seconds_left"]) == (8, pytest.approx(6))
    assert len(job(*both).ranks[0].history) < 15
    text = progress.text(found)
    assert text == "epoch 2/3, step 8/10, 0:06 left, 2/3 ranks, 2 steps/s, 64 rows/s, exchange 50%, input 10%"
    assert progress.text(job(counts(0, 1)).public()) == ""  # of a training that has not begun
    assert progress.duration(3723) == "1:02:03"


def test_what_is_traced_does_not_come_again():
    """Speed and time left are those of steps that are not traced."""
    waiting = [counts(0, second, in_epoch=0, epoch=1) for second in range(9)]
    begun = counts(0, 9, 1, epoch=1, traced=8.5, traced_steps=1)
    assert job(*waiting).public()["seconds_left"] is None
    # Ten steps in five seconds: 19 are left of three epochs.
    on = counts(0, 14, 11, traced=8.5, traced_steps=1)
    found = job(*waiting, begun, on).public()
    assert (found["steps_per_second"], found["rows_per_second"]) == (pytest.approx(2), pytest.approx(64))
    assert found["seconds_left"] == pytest.approx(19 * 0.5)
    # Then one of another shape, which takes three seconds: 18 are left.
    again = counts(0, 17, 12, traced=11.5, traced_steps=2)
    assert job(*waiting, begun, on, again).public()["seconds_left"] == pytest.approx(18 * 0.5)


def test_no_speed_before_it_is_known():
    """Not from a trace, from few steps or a short time; of slow steps in the end too, and of none that stands."""

    def line(*everyone):
        return progress.text(job(*everyone).public())

    begun = counts(0, 9, 1, epoch=1, traced=8.5, traced_steps=1)
    two, short = counts(0, 20, 3, epoch=1, traced=8.5, traced_steps=1), counts(0, 11, 9, traced=8.5, traced_steps=1)
    assert line(begun) == "epoch 1/3, step 1/10, 1/3 ranks"
    assert (
        line(begun, two) == "epoch 1/3, step 3/10, 1/3 ranks"
        and line(begun, short) == "epoch 2/3, step 9/10, 1/3 ranks"
    )
    assert line(counts(0, 9, 12, in_epoch=12)) == "epoch 2/3, step 12, 1/3 ranks"  # a group was dealt more parts
    slow = [counts(0, second, 1 + second // 20, epoch=1) for second in range(0, 130)]
    assert line(*slow[:60]) == "epoch 1/3, step 3/10, 1/3 ranks"
    assert line(*slow).startswith("epoch 1/3, step 7/10, 7:40 left, 1/3 ranks, 0.05 steps/s, 1.6 rows/s")
    assert (
        line(*slow, *(counts(0, second, 7, epoch=1) for second in range(130, 220))) == "epoch 1/3, step 7/10, 1/3 ranks"
    )
    assert len(job(*slow).ranks[0].moves) == 4
    # The next `fit` begins: what lies between is nobody's step.
    assert line(*slow, counts(0, 140, 7, epoch=1, in_epoch=0), counts(0, 141, 8, epoch=1)) == (
        "epoch 1/3, step 8/10, 1/3 ranks"
    )


def test_stragglers():
    """A rank for which the others wait, where they wait much."""
    for much, expected in ((0.5, [False, False, True]), (0.05, [False] * 3)):
        waits = (much, much, 0.0)
        found = job(*(counts(r, s, s, wait=s * waits[r]) for r in range(3) for s in range(5))).public()
        assert [rank["straggler"] for rank in found["ranks"]] == expected


def test_deaths():
    """A rank that ends says so; one that does not has died, also where nobody has heard of it."""
    found = job(counts(0, 1), counts(1, 1))
    found.left(1, ended=True, host="node1")
    found.left(2, ended=False, host="node2")
    found.left(2, ended=False, host="node2")
    found.heard(counts(0, 2, generation=1, size=1))
    public = found.public()
    assert [rank["status"] for rank in public["ranks"]] == ["runs", "ended", "died"]
    assert [what for _, what in public["events"]] == [
        "rank 2 on node2 died, or cannot be reached",
        "the others continue: 1 rank",
    ]


def read(descriptor):
    """What was written to a pipe so far."""
    os.set_blocking(descriptor, False)
    try:
        return os.read(descriptor, 1 << 16).decode()
    except BlockingIOError:
        return ""


@pytest.mark.parametrize(
    ("columns", "bar", "always", "lines"),
    [(0, False, False, 1), (0, True, False, 1), (60, False, False, 3), (60, True, False, 0), (60, True, True, 1)],
)
def test_progress(monkeypatch, columns, bar, always, lines):
    """Live on a terminal, if Keras draws no bar there; in a log at most every ten seconds, and not before a speed."""
    clock = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    there, here = os.pipe()
    shown = Progress(here, columns, always)
    meter = Meter()
    meter.begin_training(3, 10, bar)
    if not columns:
        clock[0] += 20
        shown.show(job(*(counts(0, second, second) for second in range(3))), meter)
        assert read(there) == ""
        clock[0] -= 20
    state = job(*(counts(0, second, second) for second in range(6)))
    for _ in range(3):
        clock[0] += 6
        shown.show(state, meter)
    text = read(there)
    live = columns > 0 and not bar
    assert text.count("epoch 2/3") == lines
    assert text.count("\r\x1b[K") == (3 if live else 0) and text.count("\nmatex_tf: ") + text.startswith(
        "matex_tf: "
    ) == (0 if live else lines)
    if live:
        assert all(len(line) < columns + 4 for line in text.split("\r") if line)
    shown.erase()
    shown.erase()
    assert read(there) == ("\r\x1b[K" if live else "")


@pytest.fixture
def reporter(tmp_path):
    """A job of one rank that reports."""
    chosen, meter = settings.Settings(watch_dir=str(tmp_path)), Meter()
    meter.count(32)
    found = Reporter(World(), meter, "train.py", chosen, False, [], {"words": ["train.py"]})
    yield found, chosen, meter
    found.stop()


def entry_of(chosen):
    """The job, as soon as it has written itself down."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for entry in registry.entries(chosen.watch_dir):
            return entry
        time.sleep(0.02)
    raise AssertionError("no job was written down")


def test_who_may_ask(reporter):
    """Whoever can read the user's file; without its token nothing is told, and what is no report changes nothing."""
    found, chosen, _ = reporter
    entry = entry_of(chosen)
    path = os.path.join(chosen.watch_dir, "matex_tf", "jobs", f"{entry.name}.json")
    assert os.stat(path).st_mode & 0o077 == 0 and entry.addresses == ("127.0.0.1",)
    state = registry.ask(entry)
    assert state["script"] == "train.py" and state["ranks"][0]["step"] == 1
    for said in (
        {"token": "0" * 32, "ask": "state"},
        {"ask": "state"},
        ["token"],
        {"token": entry.token, "rank": "none"},
    ):
        with socket.create_connection((entry.addresses[0], entry.port), timeout=10) as line:
            line.sendall(json.dumps(said).encode() + b"\n")
            assert line.recv(100) == b""
    with socket.create_connection((entry.addresses[0], entry.port), timeout=10) as line:
        line.sendall(b"x" * (1 << 18))
        line.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # it was closed with bytes unread
            assert line.recv(100) == b""
    assert len(registry.ask(entry)["ranks"]) == 1
    found.stop()
    assert not list(registry.entries(chosen.watch_dir))


def test_ranks_that_report(reporter):
    """A rank that connects is part of the job, and has died where its line breaks off."""
    _, chosen, _ = reporter
    entry = entry_of(chosen)
    with socket.create_connection((entry.addresses[0], entry.port), timeout=10) as line:
        for said in ({"token": entry.token, "rank": 1}, counts(1, 1), counts(1, 2)):
            line.sendall(json.dumps(said).encode() + b"\n")
        _until(lambda: registry.ask(entry)["alive"] == 2)
    _until(lambda: [rank["status"] for rank in registry.ask(entry)["ranks"]] == ["runs", "died"])


def _until(there):
    end = time.monotonic() + 10
    while not there():
        assert time.monotonic() < end
        time.sleep(0.02)
