"""The exchange: the same sums on every rank, wherever the ranks are."""

import os
import signal
import stat
import subprocess
import threading
import time

import numpy as np
import pytest
from compare import alike
from virtual import VirtualNode

from matex_tf.exchange.allreduce import Channel
from matex_tf.exchange.bucket import pack
from matex_tf.exchange.node.barrier import Meeting
from tests.support.cases import exchange

HOSTS = {"one host": "", "2 + 2": "aabb", "in turn": "abab", "3 + 1": "aaab", "1 + 3": "abbb", "four": "abcd"}
MOST = {"float16": 0.6, "bfloat16": 0.6}  # how far a sum may be off, in units of the last place
MESSAGE = {
    "dtype": ["bias float32 (10,)", "bias float64 (10,)"],
    "shape": ["bias float32 (10,)", "bias float32 (9,)"],
    "count": ["2 or 3 items", "scale"],
    "name": ["bias", "offset"],
    "elsewhere": ["different ways", "evaluate", "exchange"],
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "uint16", "int32", "int64"])
def test_sums(bare_ranks, dtype):
    """Right to the last place, aligned, and the same bits on every rank."""
    right(bare_ranks(exchange.sums, (2, 3, 4), meets="add small", dtype=dtype), MOST.get(dtype, 1.6))


@pytest.mark.parametrize("hosts", [name for name in HOSTS if name != "one host"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_between_hosts(bare_ranks, hosts, dtype):
    """The same where ranks are on different nodes, many or one on each, and not as many on all."""
    right(bare_ranks(exchange.sums, (4,), meets="add large", dtype=dtype, hosts=HOSTS[hosts]), MOST.get(dtype, 1.6))


def test_sums_on_three_hosts(bare_ranks):
    """Algorithms that halve know what to do with three."""
    right(bare_ranks(exchange.sums, (3,), meets="add large", dtype="float32", hosts="abc"))


def right(results, most=1.6):
    """Check what the case `sums` gave; short floats are rounded once, and not for each part."""
    alike({size: [{kind: marks[1:] for kind, marks in value.items()} for value in values]
           for size, values in results.items()})  # fmt: skip
    for values in results.values():
        assert values[0] and all(worst <= most and aligned for worst, aligned, _ in values[0].values()), values[0]


def test_any_memory_of_a_node():
    """A channel knows a node by its interface alone: here its ranks are threads, and share memory of the process."""
    shapes, shared = [(5,), (3, 4), (40_000,)], {}
    (bucket,) = pack(shapes, [np.dtype("float32")] * 3, 1 << 30)
    sums = {}

    def rank(number):
        channel = Channel(Meeting(VirtualNode(number, 3, shared), 3, None, False, True), 1 << 14, 1 << 16)
        for turn in range(3):
            arrays = [np.full(shapes[member], 10.0**number + turn, np.float32) for member in bucket.members]
            sums[number, turn] = channel.allreduce(bucket, arrays, 1, turn, 0, lambda held: None)
        sums[number, "differs"] = channel.allreduce(bucket, arrays, 1, number, 0, lambda held: None)

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(3):
        assert sums[number, "differs"] is None
        for turn in range(3):
            places = np.concatenate(
                [np.arange(low, low + size) for low, size in zip(bucket.starts, bucket.sizes, strict=True)]
            )
            assert (sums[number, turn][places] == 111 + 3 * turn).all()


@pytest.mark.parametrize("hosts", ["one host", "2 + 2"])
def test_several_dtypes_and_buckets(bare_ranks, hosts):
    """Each bucket has one dtype; an exchange may have many."""
    for values in bare_ranks(exchange.mixed, (4,), meets="add", hosts=HOSTS[hosts]).values():
        assert all(buckets > 8 and worst <= 1.6 for buckets, worst in values), values


@pytest.mark.parametrize(("hosts", "keeper"), [("one host", 0), ("one host", 2), ("3 + 1", 1)])
def test_results_that_are_kept(bare_ranks, hosts, keeper):
    """A result is not overwritten while any rank holds it, however many exchanges follow."""
    values = bare_ranks(exchange.kept, (4,), meets="add", hosts=HOSTS[hosts], keeper=keeper)[4]
    assert values[keeper][:2] == ([True] * 8, [False] * 8)
    assert values[keeper][2] == 8


def test_results_in_turn(bare_ranks):
    """Results that are let go lie in two places in turn."""
    assert bare_ranks(exchange.in_turn, (3,), meets="add") == {3: [2, 2, 2]}


@pytest.mark.parametrize("size", [5, 50_000])
def test_tells_that_it_waits(bare_ranks, size):
    """Whoever holds others up by what it has not said hears of it before each wait for all ranks (`World.on_wait`)."""
    for found in bare_ranks(exchange.told, (2,), meets="add", size=size)[2]:
        assert all(found.values()), found


@pytest.mark.parametrize("sharing, hosts, met", [([], "one host", 2), ([1], "one host", 1), ([1], "3 + 1", 2)])
def test_where_ranks_share_cores(bare_ranks, sharing, hosts, met):
    """Ranks of one host that share their cores meet once for a sum of 200 KB, all of them where one does."""
    assert bare_ranks(exchange.meetings, (4,), meets="add", sharing=sharing, hosts=HOSTS[hosts]) == {4: [met] * 4}


@pytest.mark.parametrize("hosts", ["one host", "2 + 2", "3 + 1"])
@pytest.mark.parametrize("how", list(MESSAGE))
def test_ranks_that_differ(bare_ranks, hosts, how):
    """Every rank is told which tensor differs; nothing is added up, and the next exchange is right."""
    texts = bare_ranks(exchange.differ, (4,), meets="go on", hosts=HOSTS[hosts], how=how)[4]
    for said in texts:
        assert said == texts[0] and len(said) == 2
        for text in said:
            assert not [word for word in MESSAGE[how] if word not in text], text


def test_large_tensors_that_differ(bare_ranks):
    """The same for tensors that travel in chunks."""
    texts = bare_ranks(exchange.differ, (2, 4), meets="go on", how="shape", size=400_000)
    for said in texts[4] + texts[2]:
        assert all("(399999,)" in text for text in said)


@pytest.mark.parametrize("hosts", ["one host", "2 + 2"])
def test_waiting_costs_little(bare_ranks, hosts):
    """A rank that waits a second for another leaves the core to it."""
    for burnt in bare_ranks(exchange.waits, (4,), meets="add", hosts=HOSTS[hosts])[4][1:]:
        assert max(burnt) <= 0.1, burnt


@pytest.mark.parametrize("hosts", ["one host", "2 + 2"])
@pytest.mark.parametrize("megabytes", [8, 3])
def test_little_room(bare_ranks, hosts, megabytes):
    """Where shared memory is small, chunks are smaller and results are copied; the sums are the same."""
    assert max(bare_ranks(exchange.little_room, (4,), meets="add", hosts=HOSTS[hosts], megabytes=megabytes)[4]) <= 1.6


def test_no_room(bare_ranks):
    """Where there is next to none, every rank says how much is needed, and how to get it."""
    for text in bare_ranks.refused(exchange.little_room, (3,), error="OutOfSharedMemory", megabytes=0.5)[3]:
        assert "/dev/shm" in text and "MB" in text and "--shm-size" in text


def test_nothing_left_behind(bare_ranks):
    """Shared files have no name once they are mapped, so that nothing stays when ranks are killed."""
    assert bare_ranks(exchange.left_behind, (3,), meets="add") == {3: [[], [], []]}


def test_buckets():
    """From the last tensor to the first; small ones together, a large one alone, one dtype in each."""
    from matex_tf.exchange.bucket import pack

    shapes = [(1000,), (10,), (100,), (3,), (500,), (200,), (4,)]
    single, double = np.dtype("float32"), np.dtype("float64")
    buckets = pack(shapes, [single, single, single, double, single, single, single], 1024)
    assert [bucket.members for bucket in buckets] == [(6, 5), (4,), (3,), (2, 1), (0,)]
    for bucket in buckets:
        assert all(start * bucket.dtype.itemsize % 64 == 0 for start in bucket.starts) and bucket.nbytes % 64 == 0
        seen = [
            (bucket.members[place], element)
            for low in range(0, bucket.size, 100)
            for place, first, last, _ in bucket.pieces(0, low, min(low + 100, bucket.size))
            for element in range(first, last)
        ]
        assert seen == [
            (member, element) for member, size in zip(bucket.members, bucket.sizes, strict=True)
            for element in range(size)
        ]  # fmt: skip


def test_an_ended_process_is_seen():
    """Also while nobody has asked for its exit code, as mpirun has not."""
    from matex_tf.core import namespaces
    from matex_tf.exchange.node.shared_memory import _watched

    process = subprocess.Popen(["sleep", "60"])
    machine, space, _ = namespaces.process()
    watched = _watched(machine, space, process.pid)
    assert not watched.poll(0)
    assert _watched(machine, space + 1, process.pid) is None, "its number is another's there"
    process.send_signal(signal.SIGKILL)
    assert watched.poll(5000)
    process.wait()


@pytest.mark.parametrize("named", [False, True])
def test_nobody_else_reads_shared_memory(tmp_path, named):
    """Its mode is 0600 whatever the umask, with a name and without."""
    from types import SimpleNamespace

    from matex_tf.exchange.node.shared_memory import NodeMemory

    before = os.umask(0)
    try:
        handle, _ = NodeMemory._create(SimpleNamespace(_directory=str(tmp_path)), 4096, named)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.fstat(handle).st_mode) == 0o600
    os.close(handle)


def test_another_file_of_the_same_path(tmp_path):
    """It is not taken for shared memory."""
    from matex_tf.core import namespaces
    from matex_tf.exchange.node.shared_memory import _map

    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_bytes(bytes(4096))
    with paths[0].open() as file:
        mark = namespaces.file(file.fileno())
    assert len(_map(str(paths[0]), 4096, mark)) == 4096
    assert _map(str(paths[1]), 4096, mark) is None


@pytest.mark.skipif(
    subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode != 0,
    reason="this user may not make a PID namespace",
)
def test_ranks_in_pid_namespaces_of_their_own(tmp_path):
    """As in two containers of one host name that share /dev/shm: they find the same memory, and take no number for the
    process of the other."""
    import sys

    from jobs import Job

    from matex_tf.launch import mpirun_command

    (tmp_path / "script.py").write_text(
        "import os, numpy as np, matex_tf\n"
        "from matex_tf.exchange import process_group\n"
        "world = matex_tf.init()\n"
        "total = process_group.sum_arrays(world, [np.arange(9.0) * (world.rank + 1)], 'add up', ['x'])[0]\n"
        "print(world.rank, total[8], os.getpid() == 1, world.exchange._node._processes)\n"
    )
    run = f"{sys.executable} -m matex_tf --output all script.py"
    shell = f"if [ $OMPI_COMM_WORLD_RANK = 0 ]; then exec unshare --pid --fork --kill-child {run}; else exec {run}; fi"
    ended = Job([*mpirun_command.mpirun_line(mpirun_command.find_mpirun(), 2), "sh", "-c", shell], tmp_path).end()
    assert ended.code == 0, ended.err
    said = sorted(ended.out.splitlines())
    assert said == ["[0] 0 24.0 True [None, None]", "[1] 1 24.0 False [None, None]"], ended


@pytest.mark.parametrize("advances", [False, True])
@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("start", [0, 2**32 - 3])
def test_counters(crowded, start, advances, monkeypatch):
    """A wait ends when the counter is set, past the wrap too; looks now and then; raises what the look raises."""
    import ctypes

    from matex_tf.exchange.node import futex

    monkeypatch.setattr(futex, "LOOK_SECONDS", 0.05)
    memory = (ctypes.c_uint32 * 6)(0, start)
    counters = futex.Counters(memoryview(memory).cast("B").cast("I"), ctypes.addressof(memory), crowded, 3, 4)
    counters.wait(1, start, lambda seconds: None)
    put = counters.advance if advances else counters.set

    def later():
        time.sleep(0.1)
        for value in range(start + 1, start + 6):
            put(1, value)

    thread = threading.Thread(target=later)
    thread.start()
    counters.wait(1, start + 5, lambda seconds: None, advances)
    thread.join()
    assert counters.reached(1, start + 5) and not counters.reached(1, start + 6)

    def gone(seconds):
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        counters.wait(1, start + 6, gone)


@pytest.mark.parametrize("start", [0, 2**32 - 10])
def test_counters_that_go_in_step(start, monkeypatch):
    """Who sleeps is woken at once, however the other is timed; where nobody sleeps, the system is not asked to wake."""
    import ctypes

    from matex_tf.exchange.node import futex

    if futex._futex is None or not futex._ordered:
        pytest.skip("ranks are always woken here")
    wakes = []
    call = futex._futex

    def counted(address, operation, value, timeout):
        wakes.append(operation)
        return call(address, operation, value, timeout)

    monkeypatch.setattr(futex, "LOOK_SECONDS", 30.0)
    monkeypatch.setattr(futex, "_look", futex._Timespec(30, 0))  # a call that is missed shows
    monkeypatch.setattr(futex, "_look_address", ctypes.addressof(futex._look))
    memory = (ctypes.c_uint32 * 6)(start, start)
    words = memoryview(memory).cast("B").cast("I")
    sides = [futex.Counters(words, ctypes.addressof(memory), False, 3, 4) for _ in range(2)]
    monkeypatch.setattr(futex, "SPIN_SECONDS", 0.0)
    sleepers = [futex.Counters(words, ctypes.addressof(memory), False, 3, 4) for _ in range(2)]
    monkeypatch.setattr(futex, "_futex", counted)
    sides[0].advance(0, start + 1)
    sides[1].advance(1, start + 1)
    assert not wakes

    def walk(number):
        pauses = np.random.default_rng(number).random(400) * 2e-4
        for value, pause in enumerate(pauses, start + 2):
            time.sleep(pause)
            sleepers[number].advance(number, value)
            sleepers[number].wait(1 - number, value, lambda seconds: None, True)

    threads = [threading.Thread(target=walk, args=(number,), daemon=True) for number in range(2)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - begin < 25
    assert 0 in wakes and 1 in wakes
