"""The exchange between ranks, without Keras."""

from __future__ import annotations

import os
import resource
import time
import zlib

import ml_dtypes
import numpy as np

from matex_tf.core import world
from matex_tf.exchange import process_group
from matex_tf.exchange.bucket import BucketPlan
from matex_tf.exchange.node import futex

SHAPES = {
    "small": [(3,), (), (5, 7), (0,), (130,)],
    "large": [(300, 401), (3,), (0, 4), (), (1 << 16,)],
    "chunks": [(7,), (600, 1201), (1 << 19,), (5, 5)],
}


def dtype_named(name):
    """A numpy dtype, TensorFlow's own among them."""
    return np.dtype(getattr(ml_dtypes, name, name))


def parts(rank, shapes, dtype, seed=0):
    """What a rank gives: whole numbers for whole dtypes, others between 0 and 1."""
    draw = np.random.default_rng([seed, rank])
    if np.dtype(dtype).kind in "iu":
        return [draw.integers(0, 20, shape).astype(dtype) for shape in shapes]
    return [(draw.random(shape, np.float32) + 0.01).astype(dtype) for shape in shapes]


def farthest(got, size, shapes, dtype, seed=0):
    """How far sums are off, in units of the last place of what was added; 1000 for wrong whole numbers."""
    given = [parts(rank, shapes, dtype, seed) for rank in range(size)]
    return max(off(total, [tensors[place] for tensors in given]) for place, total in enumerate(got))


def off(got, mine):
    """The same for the sum of some arrays."""
    if got.dtype.kind in "iu":
        return 0.0 if np.array_equal(got, sum(mine[1:], mine[0])) else 1000.0
    if got.size == 0:
        return 0.0
    mine = [part.astype(np.float64) for part in mine]
    scale = float(ml_dtypes.finfo(got.dtype).eps) * sum(map(np.abs, mine))
    return float(np.max(np.abs(got.astype(np.float64) - sum(mine)) / scale))


def on_hosts(hosts):
    """This world as if its ranks were on hosts of these names; the caller frees it."""
    ranks = world.current()
    return ranks.subset(list(range(ranks.size)), host=hosts[ranks.rank] if hosts else "")


def sums(dtype, hosts="", rounds=2):
    """Sums of many sizes; how far they are off, whether they are aligned, and a checksum of their bits."""
    ranks = on_hosts(hosts)
    dtype = dtype_named(dtype)
    result = {}
    for kind, shapes in SHAPES.items():
        for seed in range(rounds):
            labels = [f"tensor {i}" for i in range(len(shapes))]
            got = process_group.sum_arrays(ranks, parts(ranks.rank, shapes, dtype, seed), f"add {kind}", labels)
            assert [a.shape for a in got] == [tuple(shape) for shape in shapes]
            assert all(a.dtype == dtype for a in got)
            result[f"{kind} {seed}"] = (
                farthest(got, ranks.size, shapes, dtype, seed) if ranks.rank == 0 else None,
                all(a.ctypes.data % 64 == 0 for a in got),
                zlib.crc32(b"".join(a.tobytes() for a in got)),
            )
    ranks.free()
    return result


def mixed(hosts=""):
    """Tensors of several dtypes in one exchange, and of one dtype in many buckets."""
    ranks = on_hosts(hosts)
    dtypes = ["float32", "int64", "float16", "float32", "float64"] * 3
    arrays = [parts(ranks.rank, [(100 * i + 1, 40)], dtype, i)[0] for i, dtype in enumerate(dtypes)]
    plan = BucketPlan("add", [f"tensor {i}" for i in range(len(arrays))], [a.shape for a in arrays],
                [a.dtype for a in arrays], 1 << 16)  # fmt: skip
    worst = 0.0
    for _ in range(3):
        got = process_group.sum_planned(ranks, plan, arrays)
        for i, dtype in enumerate(dtypes):
            worst = max(worst, farthest([got[i]], ranks.size, [(100 * i + 1, 40)], dtype, i))
        del got
    ranks.free()
    return len(plan.buckets), worst


def kept(hosts="", keeper=0, times=8):
    """One rank keeps every result for ever, the others none; what it kept, and where results lay on the others."""
    ranks = on_hosts(hosts)
    results, places = [], []
    for step in range(times):
        array = np.full(100_000, step + ranks.rank, np.float32)
        (total,) = process_group.sum_arrays(ranks, [array], "add", ["tensor"])
        places.append(total.ctypes.data)
        if ranks.rank == keeper:
            results.append(total)
        elif step % 2:
            time.sleep(0.002)  # ranks do not walk in step
        del total
    shift = sum(range(ranks.size))
    right = [bool((total == ranks.size * step + shift).all()) for step, total in enumerate(results)]
    writeable = [total.flags.writeable for total in results]
    ranks.free()
    return right, writeable, len(set(places))


def in_turn():
    """Results that nobody keeps: how many places they take."""
    ranks = on_hosts("")
    places = []
    for _ in range(10):
        places.append(process_group.sum_arrays(ranks, [np.ones(100_000, np.float32)], "add", ["tensor"])[0].ctypes.data)
    ranks.free()
    return len(set(places))


def told(hosts="", size=50_000):
    """How often `on_wait` was called before each way in which a rank waits for all others."""
    ranks = on_hosts(hosts)
    array, calls, found = np.ones(size, np.float32), [], {}
    plan = BucketPlan.of("add", ["tensor"], [array])
    process_group.sum_arrays(ranks, [array], "add", ["tensor"])  # makes the process group
    ranks.on_wait = lambda: calls.append(1)
    for name, wait in {
        "barrier": lambda: ranks.barrier("meet"),
        "allreduce": lambda: ranks.allreduce(array, "add"),
        "broadcast": lambda: ranks.broadcast(1, "give"),
        "allgather": lambda: ranks.allgather(1, "give"),
        "allgather_rows": lambda: ranks.allgather_rows(array, "give"),
        "sum_arrays": lambda: process_group.sum_arrays(ranks, [array], "add", ["tensor"]),
        "begin": lambda: ranks.exchange.begin(plan),
    }.items():
        wait()
        found[name] = len(calls)
        calls.clear()
    ranks.on_wait = lambda: None
    ranks.free()
    return found


def meetings(sharing, hosts=""):
    """How often ranks meet for a sum of 200 KB, where the ranks `sharing` find that they share their cores."""
    ranks = on_hosts(hosts)
    array, found = np.full(50_000, ranks.rank, np.float32), futex.oversubscribed
    futex.oversubscribed = lambda count: ranks.rank in sharing
    try:
        process_group.sum_arrays(ranks, [array], "add", ["tensor"])
    finally:
        futex.oversubscribed = found
    before = ranks.exchange._channel._done
    (total,) = process_group.sum_arrays(ranks, [array], "add", ["tensor"])
    assert (total == sum(range(ranks.size))).all()
    met = ranks.exchange._channel._done - before
    ranks.free()
    return met


def differ(how, hosts="", size=10, again=True):
    """The last rank brings something else, in the first exchange or after others; then all go on.

    Args:
        how: "dtype", "shape", "count", "name", or "elsewhere" for a rank that is not in the exchange at all.
    """
    from matex_tf.errors import RanksDisagree

    ranks = on_hosts(hosts)
    last = ranks.rank == ranks.size - 1
    texts = []
    for _ in range(2 if again else 1):
        labels, arrays = ["kernel", "bias"], [np.ones(size, np.float32), np.ones(size, np.float32)]
        if last and how == "dtype":
            arrays[1] = arrays[1].astype(np.float64)
        elif last and how == "shape":
            arrays[1] = arrays[1][:-1]
        elif last and how == "count":
            labels, arrays = [*labels, "scale"], [*arrays, np.ones(3, np.float32)]
        elif last and how == "name":
            labels = ["kernel", "offset"]
        try:
            if last and how == "elsewhere":
                ranks.barrier("evaluate")
            else:
                process_group.sum_arrays(ranks, arrays, "exchange", labels)
            texts.append("")
        except RanksDisagree as error:
            texts.append(str(error))
        (total,) = process_group.sum_arrays(ranks, [np.ones(50_000, np.float32)], "go on", ["tensor"])
        assert (total == ranks.size).all()
    ranks.free()
    return texts


def waits(hosts="", seconds=1.0):
    """CPU seconds of each rank while rank 0 comes late."""
    ranks = on_hosts(hosts)
    array = np.ones(50_000, np.float32)
    process_group.sum_arrays(ranks, [array], "add", ["tensor"])
    burnt = []
    for how in ("exchange", "meet"):
        if ranks.rank == 0:
            time.sleep(seconds)
        begin = time.process_time()
        if how == "exchange":
            process_group.sum_arrays(ranks, [array], "add", ["tensor"])
        else:
            ranks.barrier("wait")
        burnt.append(time.process_time() - begin)
    ranks.free()
    return burnt


def little_room(megabytes, hosts=""):
    """The exchange with no file larger than this; what is left in the directory."""
    ranks = on_hosts(hosts)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ranks.broadcast(None, "be here before room is short")
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(megabytes * 2**20), before[1]))
    try:
        worst = 0.0
        for seed in range(2):
            shapes = SHAPES["chunks"]
            got = process_group.sum_arrays(ranks, parts(ranks.rank, shapes, "float32", seed), "add", list("abcd"))
            worst = max(worst, farthest(got, ranks.size, shapes, "float32", seed))
        return worst
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        ranks.free()


def left_behind():
    """Files of the arena that still have a name, while it is used and after."""
    ranks = on_hosts("")
    process_group.sum_arrays(ranks, [np.ones(50_000, np.float32)], "add", ["tensor"])
    ranks.barrier("look")
    names = [name for name in os.listdir("/dev/shm") if name.startswith(f"matex-{os.getuid()}-")]
    ranks.free()
    return names
