"""Who may come to a running job is said before anything is started; what fits have left is kept up to a limit."""

import json
import os
import signal
import socket
import threading
from types import SimpleNamespace

import pytest

from matex_tf import settings
from matex_tf.core import world as world_module
from matex_tf.core.world import World
from matex_tf.errors import CommunicationError, SettingError
from matex_tf.features.join import growth, hosts_file, placement
from matex_tf.features.join.arrival import Line
from matex_tf.features.join.patches.growing_fit import Questions
from matex_tf.job import layered
from matex_tf.patches.recovery.checkpoint_timer import Due
from matex_tf.patches.sources.array_fingerprint import Print
from matex_tf.settings import Settings


@pytest.fixture
def grows(monkeypatch):
    """What lets ranks come to a job, in which none is started; and the lines that it prints."""
    handler = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # tests before may have left another one
    world, said = World(), []
    world.log = said.append
    made = growth.Growth(world, {})
    monkeypatch.setattr(made, "_start", lambda one: one.end("has come", came=True))
    yield made, world, said
    signal.signal(signal.SIGTERM, handler)


def asked(made, ranks, **hosts):
    """What is answered to whoever wants ranks."""
    here, there = socket.socketpair()
    made._bring({"ranks": ranks, "hosts": hosts}, Line(there))
    with here, here.makefile("rb") as file:
        return [json.loads(file.readline()) for _ in range(ranks)]


def test_where_ranks_come(grows, monkeypatch):
    """To the host with the fewest ranks for each core, of those that are named; a rank of that host starts them."""
    made, world, said = grows
    world.nodes, world.hosts, world.first_ranks = [[0, 2], [1]], ["h1", "h2.example", "h1"], [0, 3, 4]
    made._cores = {"h1": 4, "h2.example": 4}
    started = []
    monkeypatch.setattr(made, "_start", lambda one: started.append((one.host, one.starter)) or one.end("", came=True))
    for hosts, where in (({}, ("h2.example", 3)), ({"h1": 0}, ("h1", 0)), ({"h2": 1}, ("h2.example", 3))):
        assert asked(made, 1, **hosts)[0]["came"] and started[-1] == where
    assert "the hosts of the job (h1, h2.example), not to others" in asked(made, 1, h3=0)[0]["said"]
    assert [one["came"] for one in asked(made, 2, h2=1)] == [True, False] and "no more room" in said[-1]
    assert placement.read("h1:2,me@h2,h1:1") == {"h1": 3, "h2": 0} and placement.read("") == {}


def test_another_host(grows, monkeypatch):
    """The rank that starts one is told so where all ranks ask one another, and what goes wrong comes back."""
    made, world, said = grows
    monkeypatch.undo()
    world.nodes, world.hosts, world.first_ranks = [[0], [1]], ["h1", "h2"], [0, 1]
    here, there = socket.socketpair()
    brings = threading.Thread(target=made._bring, args=({"ranks": 1, "hosts": {"h2": 0}}, Line(there)))
    brings.start()
    while not (told := made.starter.tells()):
        pass
    made.told(told)
    other = growth.Growth(World(), {})
    other._world.first_ranks = [1]
    other._world.start = lambda words, told: (_ for _ in ()).throw(CommunicationError("no room"))
    other.told(told)
    while not (failed := other.starter.tells()):
        pass
    made.told(failed)
    with here, here.makefile("rb") as file:
        assert json.loads(file.readline())["said"] == "a joining rank cannot be started: no room"
    brings.join()
    assert made.bridge_to(7, 5, ("", 0, 0)) == (None, -1) and made.bridge_to(7, 1, ("", 0, 0)) == (None, 1)


def test_most_ranks(monkeypatch):
    """No more than --max-ranks are started, with those that are on their way."""
    handler = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # tests before may have left another one
    monkeypatch.setattr(settings, "current", lambda: Settings.read({"max_ranks": "2"}, {}))
    world = World()
    world.log = lambda line: None
    made = growth.Growth(world, {})
    monkeypatch.setattr(made, "_start", lambda one: one.end("is on its way", came=True))
    world.size = 1
    assert [one["came"] for one in asked(made, 1)] == [True]
    world.size = 2
    assert "the job has --max-ranks 2" in asked(made, 1)[0]["said"]
    signal.signal(signal.SIGTERM, handler)


def test_the_same_rows_on_other_threads():
    """A rank that comes may have more threads than the others, which add up in another order."""
    mine, other = Print("float32 (9,)", 5, (1.0, 2.0)), Print("float32 (9,)", 5, (1.0, 2.0000001))
    assert mine == other and repr((9, [mine])) == repr((9, [other])) and [mine] == [other]
    assert mine != Print("float32 (9,)", 6, (1.0, 2.0)) and mine != Print("float32 (8,)", 5, (1.0, 2.0))


def test_dies_as_it_starts(monkeypatch):
    """Open MPI waits for it for ever: whoever wants ranks does not."""
    handler = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # tests before may have left another one
    monkeypatch.setattr(placement, "START_SECONDS", 0.05)
    world, waits = World(), threading.Event()
    world.log, world.start = lambda line: None, lambda words, told: waits.wait()
    made = growth.Growth(world, {})
    assert "did not start within" in asked(made, 1)[0]["said"]
    assert "an earlier one has not started yet" in asked(made, 1)[0]["said"]
    waits.set()
    signal.signal(signal.SIGTERM, handler)


def test_files_of_ranks_that_have_come():
    """They count once all ranks that began the job have died, and then those of the first of them."""
    for first_ranks, place, counts in (*(([0, 2, 3], 1, []), ([1, 2], 1, []), ([2, 3], 0, ["/"]), ([2, 3], 1, [])),):
        world, first = World(), []
        world.first_ranks, world.rank = first_ranks, place
        layer = SimpleNamespace(
            shared_by={"/": []}, be_first=lambda top, only_newer, first=first: first.append(top), publish=lambda: None
        )
        layered._take_over(world, layer)
        assert first == counts


def test_rank_0_dies_as_ranks_ask(monkeypatch):
    """Nobody has an answer then: the next rank 0 is asked before the next step."""
    growing = SimpleNamespace(leaves=False, starter=SimpleNamespace(tells=list), told=lambda said: None)
    world = SimpleNamespace(rank=0, size=2, first_ranks=[0, 1], growth=growing)
    monkeypatch.setattr(world_module, "current", lambda: world)
    for answers, meant in (([None, None], (Due.NOTHING.value, 1)), ([(Due.SAVE.value, 4), None], (Due.SAVE.value, 4))):
        world.allgather = lambda said, what, answers=answers: [(-1, answer, []) for answer in answers]
        assert Questions()._meet(None) == meant


def test_what_fits_have_left(grows, monkeypatch):
    """It is encoded where a rank asks for it; past a limit nothing is kept, and ranks that ask are told so."""
    made, _, _ = grows
    monkeypatch.setattr(growth, "_MOST_BYTES", 100)
    encoded = []
    made.leave(1, {"epoch": 3}, lambda: encoded.append(1) or b"state", 60)
    made.at(2, (0, 0))
    assert not encoded and made._where(1) == ({"over": True, "epoch": 3}, b"state") and encoded
    made.leave(2, {}, bytes, 60)
    made.at(3, (0, 0))
    assert made._where(1) == made._where(2) == ({"over": True, "lost": True}, b"")


def test_told_to_leave(grows):
    """The first SIGTERM is a wish; a second one, and that of a process that was forked, are as ever."""
    made, _, _ = grows
    os.kill(os.getpid(), signal.SIGTERM)
    assert made.leaves and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    again = growth.Growth(made._world, {})
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM and not again.leaves


def test_wanted_hosts(grows, monkeypatch):
    """The newest ranks leave a host that has less room, and none below --min-ranks; others come, up to --max-ranks."""
    made, world, said = grows
    world.hosts, world.first_ranks, wanted = ["h1", "h2.example", "h1", "h1"], [0, 3, 4, 5], made._wanted
    wanted._least, wanted._most, brought = 2, 5, []
    monkeypatch.setattr(wanted, "_bring", lambda ranks, hosts: brought.append((ranks, hosts)) or [])

    def leave(rank):
        index = world.first_ranks.index(rank)
        del world.first_ranks[index], world.hosts[index]

    monkeypatch.setattr(made.starter, "tell_to_leave", leave)
    wanted.follow("file", {"h1": 2, "h2": 9, "h3": 1})
    assert world.first_ranks == [0, 3, 4] and brought == [(2, {"h2.example": 8})]
    assert "file names h3, on which the job has no rank" in said[0] and "to join: 2, to leave: 1" in said[1]
    wanted.follow("file", {"h1": 0, "h3": 1})
    assert world.first_ranks == [0, 3] and "stay (1): the job has --min-ranks 2" in said[-1] and len(said) == 4
    made.told([{"leave": 7}, {"leave": 0}])
    assert made.leaves
    monkeypatch.setattr(socket, "gethostbyname_ex", lambda host: (host, [], ["10.0.0.2"]))
    assert placement.is_host("10.0.0.2", "h2") and not placement.is_host("10.0.0.3", "h2")


def test_hosts_file(tmp_path, monkeypatch):
    """What a file says for a moment is passed over; one that cannot be read is said once, and the job is told once of
    what it then has: also of hosts that are gone."""
    path, said, here = tmp_path / "hosts", [], socket.gethostname()

    def read():
        if "x" in (text := path.read_text()):
            raise SettingError(f"{path} is broken.")
        return text

    path.write_text("localhost")
    file = hosts_file.HostsFile(str(path), "localhost", read, "job", str(tmp_path), said.append)
    looks = []
    more, moved = ["localhost", "h1", "localhost,h1:2", "localhost,h1:2"], ["h1:2,localhost", "h1:2", "h1:2"]
    for text in (*more, "x", "x", "x", *moved):
        path.write_text(text)
        os.utime(path, ns=(0, len(looks)))
        looks.append(file._look())
    assert looks == [False] * 3 + [True] + [False] * 5 + [True] and file._wanted == {here: 0, "h1": 2}
    assert said == [f"{path} is broken. The job continues on the hosts that it has"]
    monkeypatch.setattr(hosts_file, "_SECONDS_TO_FIND", 0)
    for _ in range(3):
        file._tell()
    assert len(said) == 2 and "has changed, and the job cannot be told" in said[1]
