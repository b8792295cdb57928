"""What a rank does in each exchange for each other rank of its node: in a few calls of numpy where there are many."""

import types

import numpy as np
import pytest

from matex_tf.exchange.node import barrier, reduction
from matex_tf.exchange.node.futex import Counters

RANKS = (2, 3, 8, 9, 12, 16, 31, 33, 64, 100)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "float16"])
def test_sums_have_the_bits_of_the_tree(dtype):
    """Whatever the number of parts, those of `add_up`: ((0 + 1) + (2 + 3)) + 4."""
    random = np.random.RandomState(0)
    for ranks in range(1, 70):
        memory = np.zeros((ranks + 1, 512), np.uint8)
        parts = memory[:-1, : 7 * np.dtype(dtype).itemsize].view(dtype)
        parts[...] = (random.standard_normal((ranks, 7)) * 10.0 ** random.randint(-3, 4, (ranks, 1))).astype(dtype)
        expected, found = np.empty(7, dtype), np.empty(7, dtype)
        reduction.add_up(list(parts), expected)
        reduction.small_sum(parts)(found)
        assert found.tobytes() == expected.tobytes(), ranks


def test_calls_of_a_sum_grow_as_the_logarithm(monkeypatch):
    calls = []
    counted = types.SimpleNamespace(
        **{**vars(np), "add": lambda *args, **more: calls.append(1) or np.add(*args, **more)}
    )
    for ranks, most in ((16, 4), (64, 6), (100, 7)):
        parts = np.ones((ranks, 5), np.float32)
        monkeypatch.setattr(reduction, "np", counted)
        add, total = reduction.small_sum(parts), np.empty(5, np.float32)
        calls.clear()
        add(total)
        monkeypatch.undo()
        assert (total == ranks).all() and len(calls) == most


def a_barrier(size: int, many: bool, calls: int = 0) -> barrier.CheckedBarrier:
    """One without a node: its memory alone."""
    made = object.__new__(barrier.CheckedBarrier)
    made._words = memoryview(np.zeros(size * barrier._LINE, np.uint32)).cast("B").cast("I")
    made._node = types.SimpleNamespace(size=size, rank=0)
    made._calls, made._done = calls, 0
    made._lines = np.asarray(made._words).reshape(size, barrier._LINE) if many else None
    made._others = [rank * barrier._LINE + barrier._PROGRESS for rank in range(1, size)]
    made._counters = Counters(made._words, 0, False, barrier._BROKEN, barrier._ASLEEP)
    made._await = lambda word, ranks, target: made.waited.append(target)
    made.waited = []
    return made


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("size", RANKS)
def test_signs_are_compared(size, many):
    """All alike; one that differs, wherever it is, in either checksum; what any of them holds."""
    for calls in (0, 1):
        made = a_barrier(size, many, calls)
        for rank in range(size):
            made._node.rank = rank
            made._sign(7, 0xFFFFFFFF, 1 << rank % 3)
        held = sum({1 << rank % 3 for rank in range(size)})
        assert made._compare() == (True, held)
        assert made._same(7, 0xFFFFFFFF)
        for rank in {0, 1, size - 1}:
            for what, detail in ((8, 0xFFFFFFFF), (7, 0)):
                made._node.rank = rank
                made._sign(what, detail, 0)
                made._node.rank = 0
                mine = (what, detail) if rank == 0 else (7, 0xFFFFFFFF)
                assert made._compare()[0] is False
                assert made._same(*mine) is False
                made._node.rank = rank
                made._sign(7, 0xFFFFFFFF, 0)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize("done", [1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x100000000])
def test_counters_are_looked_at(size, many, done):
    """None is waited for where all are there, or one ahead, also where counters wrap around; else it is."""
    made = a_barrier(size, many)
    made._done = done
    for rank in range(size):
        made._words[rank * barrier._LINE + barrier._PROGRESS] = (done + rank % 2) & 0xFFFFFFFF
    made._await_all()
    assert made.waited == []
    made._words[(size - 1) * barrier._LINE + barrier._PROGRESS] = (done - 1) & 0xFFFFFFFF
    made._await_all()
    assert made.waited == [done]
