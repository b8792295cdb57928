"""Deaths in a job on three hosts with two ranks each, emulated on this machine by benchmarks/hosts.py."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest
from jobs import LAUNCHER, Job
from on_hosts import left

from benchmarks.hosts import Hosts, unavailable
from matex_tf.faults import liveness
from matex_tf.faults import peer_sockets as lines_module
from matex_tf.faults.peer_sockets import PeerSocket
from matex_tf.launch import ulfm

needs_hosts = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "can run")
pytestmark = pytest.mark.timeout(600)

#: Ranks share out batches and add up what they make of them; without Keras, so that it takes little time. In step 5
#: they wait until `go` is there; meanwhile ranks, hosts or links die. In step 8 they wait for `on`.
STEPS = """
import json, os, time
import numpy as np
import matex_tf
from matex_tf.exchange import process_group
from matex_tf.core.row_partition import span
world = matex_tf.init()
first = world.rank
weights = np.zeros(3)
for step in range(12):
    world.at(f"step {step}")
    if step == 5:
        with open(f"ready.{first}", "w") as file:
            file.write("yes")
    while step in (5, 8) and not os.path.exists("go" if step == 5 else "on"):
        time.sleep(0.01)
    def add_up():
        low, high = span(100, world.rank, world.size)
        rows = np.arange(low, high)[:, None] * [1.0, 2.0, 3.0] + weights
        return process_group.sum_arrays(world, [rows.sum(0)], "add up", ["the gradient"])[0]
    weights = weights - 1e-3 * world.run_atomically(add_up)
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


def start(hosts, folder, *settings, each=2, **environ):
    """The job, with so many ranks on each host, once it waits in step 5.

    Now and then a rank crashes within `MPI_Init` of Open MPI 5 where the failure detector is on and cores are busy
    (docs/faults.md). Such a job is started again, as its user would.
    """
    (folder / "script.py").write_text(STEPS)
    line = [*hosts.on(folder=folder), LAUNCHER, "run", "-n", f"{3 * each}", "--faults", "shrink"]
    line += ["--hosts", ",".join(f"h{number}:{each}" for number in (1, 2, 3))]
    for starts_left in (2, 1, 0):
        job = Job([*line, *settings, "script.py"], folder, **hosts.environ, **environ)
        try:
            for rank in range(3 * each):
                job.await_file(folder / f"ready.{rank}", 90)
        except AssertionError as error:
            if "ompi_mpi_init" not in str(error) or not starts_left:
                raise
            job.stop()
            shutil.rmtree(job.temporary)  # of an mpirun that was killed
            for path in folder.glob("ready.*"):
                path.unlink()
        else:
            break
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


def died_on_h2(said):
    """How many of its ranks are said to have died. All at once or one after the other: nobody knows beforehand."""
    both = len(re.findall(r"ranks 2-3 of 6 on h2 died in step", said))
    return 2 * both + len(re.findall(r"rank [123] of [356] on h2 died in step", said))


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
    assert ended.code == 0 and f"{6 - count} ranks continue" in ended.err and "on h2 died in step" in ended.err, ended
    dead = {2, 3} if count == 2 else {2, 3} - {int(path.name[4:]) for path in tmp_path.glob("end.*")}
    assert len(dead) == count
    survived(tmp_path, sorted({0, 1, 2, 3, 4, 5} - dead))
    assert left(three, job, 60) == []


@needs_hosts
def test_nobody_dies(three, tmp_path):
    """The job ends, and its good end is heard of where the launcher has no file in common with rank 0."""
    (tmp_path / "go").touch()
    (tmp_path / "on").touch()
    job = start(three, tmp_path, TMPDIR="/run/tmp")
    ended = job.end(30)
    assert ended.code == 0 and "died" not in ended.err and "\x1e" not in ended.err, ended
    survived(tmp_path, range(6))
    assert left(three, job, 60) == []


@needs_hosts
@pytest.mark.variants(1)
@pytest.mark.parametrize(("back", "each"), [(False, 1), (False, 2), (True, 2)])
def test_a_link_is_cut(tmp_path, back, each):
    """A host that falls silent counts as dead. Its own ranks end, and do not go on beside the others, nor end them when
    the link is there again."""
    with Hosts(3) as made:
        # 15 seconds without a heartbeat are a death: a machine that is shared may stand still for some of that.
        job = start(made, tmp_path, "--stall-abort-seconds", "45" if each == 2 else "15", each=each)
        made.unplug("h2")
        begin = time.monotonic()
        (tmp_path / "go").touch()
        while ranks_of(made, "h2") and time.monotonic() < begin + 200:
            time.sleep(0.1)
        alive = ranks_of(made, "h2")
        if back:
            made.plug("h2")
            time.sleep(5)  # for what is under way to arrive; TCP has doubled the pauses between its attempts
        (tmp_path / "on").touch()
        job.process.wait(200)
        made.kill("h2")  # its prted may wait for a mpirun that it cannot hear of, and hold the job's output open
        ended = job.end(60)
        assert not alive, ended
        assert ended.code == 0 and died_on_h2(ended.err) == each, ended
        assert ("the job ends without" in ended.err) is not back
        survived(tmp_path, [rank for rank in range(3 * each) if rank // each != 1])
        assert left(made, job, 60) == []


@needs_hosts
def test_a_host_goes_down_and_says_so(tmp_path):
    """Where the connection of mpirun to a host closes, the others go on as well."""
    with Hosts(3) as made:
        job = start(made, tmp_path)
        made.kill("h2")
        (tmp_path / "go").touch()
        (tmp_path / "on").touch()
        ended = job.end(60)
        assert ended.code == 0 and died_on_h2(ended.err) == 2, ended
        survived(tmp_path, [0, 1, 4, 5])
        assert left(made, job, 60) == []


@needs_hosts
def test_a_host_goes_down_while_ranks_start(tmp_path):
    """Nobody can go on then: the job ends, and not as if it had gone well."""
    (tmp_path / "script.py").write_text("import matex_tf\nmatex_tf.init().barrier('never come to this')\n")
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\n"
        "if os.environ.get('OMPI_COMM_WORLD_RANK') == '3':\n"
        "    with open('started', 'w') as file:\n"
        "        file.write('yes')\n"
        "    time.sleep(1000)\n"
    )
    with Hosts(2) as made:
        line = [*made.on(folder=tmp_path), LAUNCHER, "run", "--hosts", "h1:2,h2:2", "--faults", "shrink", "script.py"]
        job = Job(line, tmp_path, PYTHONPATH=str(tmp_path), **made.environ)
        job.await_file(tmp_path / "started", 60)
        made.kill("h2")
        assert job.end(30).code not in (0, None)
        assert left(made, job, 60) == []


def test_which_part_goes_on():
    """The larger one; of equal ones that with the lowest rank. Never both, never none."""
    for here in range(1, 1 << 5):
        part = [rank for rank in range(6) if here >> rank & 1]
        rest = [rank for rank in range(6) if not here >> rank & 1]
        assert liveness.wins_split(part, rest) != liveness.wins_split(rest, part)
        assert liveness.wins_split(part, rest) or len(part) <= len(rest)
    assert liveness.wins_split([0, 3], [1, 2]) and not liveness.wins_split([1, 2], [0, 3])


@pytest.fixture
def lines():
    """Makes connections: a line of this process, and the other end."""
    with contextlib.ExitStack() as opened:

        def connection():
            listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
            here = opened.enter_context(socket.create_connection(listener.getsockname()))
            here.setblocking(False)
            return PeerSocket(here), opened.enter_context(listener.accept()[0])

        yield connection


def test_who_is_alive(lines):
    """Who has closed a line is gone. Who is silent, breaks it off by a reset, or has none, counts as alive, and
    does so whenever it is asked."""
    (gone, end), (silent, kept), (reset, broken) = lines(), lines(), lines()
    end.close()
    broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    broken.close()
    for seconds in (0.2, 0):
        assert liveness.alive([gone, silent, reset, None], seconds) == [False, True, True, True]
    assert kept.fileno() >= 0


def test_a_child_of_a_rank_holds_no_line(lines):
    """Workers of a rank may live longer than it: they do not make it look alive."""
    line, end = lines()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            signal.pause()
        os._exit(0)
    try:
        line.socket.close()
        end.settimeout(10)
        assert end.recv(1) == b""
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_stranger_gets_no_line():
    """Whoever connects without the number of the job, or says nothing, is no rank, and holds nobody up."""
    with contextlib.ExitStack() as opened:
        listeners = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ports = [[listener.getsockname()] for listener in listeners]
        strangers = [opened.enter_context(socket.create_connection(ports[0][0])) for _ in range(3)]
        strangers[0].sendall(b"x" * 16 + (1).to_bytes(4, "little"))
        strangers[1].sendall(b"token of the job")
        made: list[dict[int, socket.socket]] = [{}, {}]

        def meet(rank):
            meeting = lines_module._Meeting(rank, b"token of the job", [1 - rank], [listeners[rank]])
            made[rank] = meeting.make(ports, time.monotonic() + 30)

        threads = [threading.Thread(target=meet, args=(rank,)) for rank in (0, 1)]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert list(made[0]) == [1] and list(made[1]) == [0] and time.monotonic() - begin < 20
        assert made[0][1].getpeername() == made[1][0].getsockname()
        for found in made:
            next(iter(found.values())).close()


@needs_hosts
@pytest.mark.skipif(not shutil.which("iptables"), reason="needs iptables (Debian: apt-get install iptables)")
def test_a_firewall_refuses(three, tmp_path):
    """A firewall that resets every connection of a host's ranks does not make the others look dead to them: they end,
    and do not go on beside the others. While ranks run, they wait for nobody but MPI's connections, and for reports."""
    job = start(three, tmp_path)
    listening = subprocess.check_output([*three.on("h1"), "ss", "-ltnpH"], text=True).splitlines()
    of_ranks = [line for line in listening if '"python' in line]
    assert len(of_ranks) == 6, "of each rank one of IPv4 and one of IPv6, those of Open MPI, and the one for reports"
    rule = ["-p", "tcp", "-s", three.address("h2"), "-j", "REJECT", "--reject-with", "tcp-reset"]
    try:
        for name in ("h1", "h3"):
            subprocess.run([*three.on(name), "iptables", "-I", "INPUT", *rule], check=True)
        (tmp_path / "go").touch()
        limit = time.monotonic() + 90
        while ranks_of(three, "h2") and time.monotonic() < limit:
            time.sleep(0.1)
        alive = ranks_of(three, "h2")
        (tmp_path / "on").touch()
        ended = job.end(90)
    finally:
        for name in ("h1", "h3"):
            subprocess.run([*three.on(name), "iptables", "-D", "INPUT", *rule], check=True)
    assert not alive, ended
    assert ended.code == 0 and died_on_h2(ended.err) == 2, ended
    survived(tmp_path, [0, 1, 4, 5])
    assert left(three, job, 60) == []


def test_silence():
    """All ranks of a host are found within what is asked for, one after the other."""
    for ranks in (1, 2, 4):
        first = ulfm.silence(ranks, 21)
        assert first + 2 * first * (ranks - 1) == pytest.approx(21)
    assert ulfm.silence(64, 10) == ulfm.SHORTEST_SILENCE
    assert subprocess.list2cmdline(ulfm.options(False, 2, 10)).endswith("btl_tcp_if_include lo")
