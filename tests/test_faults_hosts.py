"""Deaths in a job on three hosts with two ranks each, emulated on this machine by benchmarks/hosts.py."""

import json
import os
import signal
import subprocess
import time

import pytest
from hosts import Hosts, unavailable
from jobs import LAUNCHER, Job
from on_hosts import left

from matex_tf import partition, ulfm

needs_hosts = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "can run")
pytestmark = pytest.mark.timeout(300)

#: Ranks share out batches and add up what they make of them; without Keras, so that it takes little time. In step 5
#: they wait until `go` is there; meanwhile ranks, hosts or links die. In step 8 they wait for `on`.
STEPS = """
import json, os, time
import numpy as np
import matex_tf
from matex_tf.exchange import party
from matex_tf.parts import span
world = matex_tf.init()
first = world.rank
weights = np.zeros(3)
for step in range(12):
    world.where = f"step {step}"
    if step == 5:
        with open(f"ready.{first}", "w") as file:
            file.write("yes")
    while step in (5, 8) and not os.path.exists("go" if step == 5 else "on"):
        time.sleep(0.01)
    def add_up():
        low, high = span(100, world.rank, world.size)
        rows = np.arange(low, high)[:, None] * [1.0, 2.0, 3.0] + weights
        return party.sum_arrays(world, [rows.sum(0)], "add up", ["the gradient"])[0]
    weights = weights - 1e-3 * world.whole(add_up)
with open(f"end.{first}", "w") as file:
    json.dump([world.size, weights.tolist()], file)
"""


def answer():
    """The weights that one rank would end with."""
    import numpy as np

    weights = np.zeros(3)
    for _ in range(12):
        weights = weights - 1e-3 * (np.arange(100)[:, None] * [1.0, 2.0, 3.0] + weights).sum(0)
    return weights.tolist()


def start(hosts, folder, *settings, **environ):
    """The job, once it waits in step 5."""
    (folder / "script.py").write_text(STEPS)
    line = [*hosts.on(folder=folder), LAUNCHER, "run", "-n", "6", "--hosts", "h1:2,h2:2,h3:2", "--faults", "shrink"]
    job = Job([*line, *settings, "script.py"], folder, **hosts.environ, **environ)
    for rank in range(6):
        job.await_file(folder / f"ready.{rank}", 90)
    return job


def ranks_of(hosts, name):
    """The processes of a host that are ranks."""
    return [pid for pid, command in hosts.processes(name).items() if "-m matex_tf" in command]


def survived(folder, ranks):
    """Those that reached the end are these ranks, and all have the answer."""
    ends = {path.name: json.loads(path.read_text()) for path in folder.glob("end.*")}
    assert sorted(ends) == [f"end.{rank}" for rank in ranks], ends
    for size, weights in ends.values():
        assert size == len(ranks) and weights == pytest.approx(answer(), rel=1e-12)


@pytest.fixture(scope="module")
def three():
    """Three hosts that stay whole."""
    with Hosts(3) as made:
        yield made


@needs_hosts
@pytest.mark.parametrize("count", [1, 2])
def test_ranks_are_killed(three, tmp_path, count):
    """One rank of a host, or all of them: the ranks of the other hosts hear of it, and go on."""
    job = start(three, tmp_path)
    for pid in ranks_of(three, "h2")[:count]:
        os.kill(pid, signal.SIGKILL)
    (tmp_path / "on").touch()
    (tmp_path / "go").touch()
    ended = job.end(60)
    assert ended.code == 0 and f"{6 - count} ranks go on" in ended.err and "on h2 died in step" in ended.err, ended
    dead = {2, 3} if count == 2 else {2, 3} - {int(path.name[4:]) for path in tmp_path.glob("end.*")}
    assert len(dead) == count
    survived(tmp_path, sorted({0, 1, 2, 3, 4, 5} - dead))
    assert left(three, job, 10) == []


@needs_hosts
def test_nobody_dies(three, tmp_path):
    """The job ends, and its good end is heard of where the launcher has no file in common with rank 0."""
    (tmp_path / "go").touch()
    (tmp_path / "on").touch()
    job = start(three, tmp_path, TMPDIR="/run/tmp")
    ended = job.end(30)
    assert ended.code == 0 and "died" not in ended.err and "\x1e" not in ended.err, ended
    survived(tmp_path, range(6))
    assert left(three, job, 10) == []


@needs_hosts
@pytest.mark.variants(1)
@pytest.mark.parametrize("back", [False, True])
def test_a_link_is_cut(tmp_path, back):
    """A host that falls silent counts as dead. Its own ranks end, and do not go on beside the others, nor end them when
    the link is there again."""
    with Hosts(3) as made:
        job = start(made, tmp_path, "--stall-abort-seconds", "20")
        made.unplug("h2")
        begin = time.monotonic()
        (tmp_path / "go").touch()
        while ranks_of(made, "h2") and time.monotonic() < begin + 90:
            time.sleep(0.1)
        alive = ranks_of(made, "h2")
        if back:
            made.plug("h2")
            time.sleep(5)  # for what is under way to arrive; TCP has doubled the pauses between its attempts
        (tmp_path / "on").touch()
        job.process.wait(90)
        made.kill("h2")  # its prted may wait for a mpirun that it cannot hear of, and hold the job's output open
        ended = job.end(10)
        assert not alive, ended
        assert ended.code == 0 and "ranks 2-3 of 6 on h2 died in step" in ended.err, ended
        assert ("the job ends without 2 ranks" in ended.err) is not back
        survived(tmp_path, [0, 1, 4, 5])
        assert left(made, job, 10) == []


@needs_hosts
def test_a_host_goes_down_and_says_so(tmp_path):
    """Where mpirun loses a connection to a host it ends the job; the end says so, and is no good one."""
    with Hosts(3) as made:
        job = start(made, tmp_path)
        made.kill("h2")
        ended = job.end(30)
        assert ended.code == 1 and "lost its daemon (prted) on a host" in ended.err, ended
        assert left(made, job, 10) == []


def test_which_part_goes_on():
    """The larger one; of equal ones that with the lowest rank. Never both, never none."""
    for here in range(1, 1 << 5):
        part = [rank for rank in range(6) if here >> rank & 1]
        rest = [rank for rank in range(6) if not here >> rank & 1]
        assert partition.goes_on(part, rest) != partition.goes_on(rest, part)
        assert partition.goes_on(part, rest) or len(part) <= len(rest)
    assert partition.goes_on([0, 3], [1, 2]) and not partition.goes_on([1, 2], [0, 3])


def test_who_is_alive():
    """A port that nobody listens on belongs to a process that is gone; a stopped one still counts as alive."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as closed:
        port, gone = listening.getsockname()[1], closed.getsockname()[1]
        closed.close()
        assert partition.alive([(port, ["127.0.0.1"]), (gone, ["127.0.0.1"]), (gone, [])]) == [True, False, True]


def test_silence():
    """All ranks of a host are found within what is asked for, one after the other."""
    for ranks in (1, 2, 4):
        first = ulfm.silence(ranks, 21)
        assert first + 2 * first * (ranks - 1) == pytest.approx(21)
    assert ulfm.silence(64, 10) == ulfm.SHORTEST_SILENCE
    assert subprocess.list2cmdline(ulfm.options(False, 2, 10)).endswith("btl_tcp_if_include lo")
