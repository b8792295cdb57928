"""Waiting for another process, without burning the core that it may need.

What is waited for is a 32-bit counter in shared memory that another process sets. A short spin catches what is about
to come; after that the kernel holds the process (a futex) until the counter changes. Where the kernel has no futex
that Python can call, sleeps that grow take its place.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from matex_tf.core.waiting import backoff
from matex_tf.errors import RankLost

_FUTEX = {"x86_64": 202, "aarch64": 98, "ppc64le": 221, "riscv64": 98, "s390x": 238}
_WAIT, _WAKE, _EVERYONE = 0, 1, 0x7FFFFFFF
_WRAP, _HALF = 0xFFFFFFFF, 0x80000000

#: Seconds that a wait spins where every rank of the node has a core of its own, and where ranks share cores: there it
#: gives the core away at each turn.
SPIN_SECONDS, YIELD_SECONDS = 6e-5, 3e-4
#: Seconds between two looks at whether the process that is waited for still lives.
LOOK_SECONDS = 0.25


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def _load() -> Callable[..., int] | None:
    number = _FUTEX.get(platform.machine())
    if number is None or not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    long, pointer = ctypes.c_long, ctypes.c_void_p
    call.argtypes = [long, pointer, long, long, pointer, pointer, long]
    word = ctypes.c_uint32(0)
    if call(number, ctypes.addressof(word), _WAKE, 1, None, None, 0) != 0:
        return None  # a sandbox that forbids it
    return lambda address, operation, value, timeout: call(number, address, operation, value, timeout, None, 0)


_futex = _load()
_look = _Timespec(int(LOOK_SECONDS), int(LOOK_SECONDS % 1 * 1e9))
_look_address = ctypes.addressof(_look)

# x86 shows stores to others in the order in which they were made. Elsewhere giving back and taking a lock, which the
# processor may not reorder with what stands before and after, does that.
_ordered = platform.machine() in ("x86_64", "AMD64", "i686", "s390x")
_order = threading.Lock()


def oversubscribed(ranks: int, threads: int = 1) -> bool:
    """Whether `ranks` processes of this node with so many busy threads each have more of them than cores.

    A rank that is bound to cores of its own (by mpirun or Slurm) sees only those, and is not oversubscribed.

    Args:
        ranks: processes on this node.
        threads: of each of them that compute at the same time.
    """
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    everyone = os.cpu_count() or 1
    return threads > mine or (mine == everyone and ranks * threads > mine) or ranks > everyone


class Counters:
    """32-bit counters in shared memory, each set by one process and waited for by others.

    They wrap around; a counter has reached a target when it is less than 2^31 ahead of it.
    """

    def __init__(self, words: memoryview, address: int, oversubscribed: bool, broken: int, asleep: int):
        """A view of such counters.

        Args:
            words: of format "I".
            address: of the first.
            oversubscribed: whether processes that wait share cores.
            broken: a word that is set once nobody shall wait any more.
            asleep: the first of two words in which who sleeps says what for, see `advance`.
        """
        self._words = words
        self._broken, self._asleep = broken, asleep
        self._address = address
        self._oversubscribed = oversubscribed
        self._spin = YIELD_SECONDS if oversubscribed else SPIN_SECONDS

    def set(self, index: int, value: int) -> None:
        """Set a counter, after everything that was written before, and wake who waits for it.

        Args:
            index: which counter.
            value: counted modulo 2**32.
        """
        if not _ordered:
            with _order:
                pass
        self._words[index] = value & _WRAP
        if _futex is not None:
            _futex(self._address + 4 * index, _WAKE, _EVERYONE, None)

    def advance(self, index: int, value: int) -> None:
        """Set one of counters that all go the same steps, none more than one ahead: wake only if somebody sleeps.

        Who goes to sleep until such a counter is `value` leaves `value` in one of two words, in turn: nobody waits for
        a value that is two away. To wake nobody takes the system longer than a small sum takes.

        Args:
            index: which counter.
            value: one more than it is; counted modulo 2**32.
        """
        value &= _WRAP
        if _futex is None or not _ordered:
            return self.set(index, value)
        words = self._words
        words[index] = value
        with _order:  # a locked operation of the processor: what is read after it is no older than what was written
            pass
        if words[self._asleep + (value & 1)] == value:
            _futex(self._address + 4 * index, _WAKE, _EVERYONE, None)

    def revoke(self, indices: Sequence[int]) -> None:
        """Let nobody wait any more. Args: indices: the counters that are waited for."""
        self._words[self._broken] = 1
        if _futex is not None:
            for index in indices:
                _futex(self._address + 4 * index, _WAKE, _EVERYONE, None)

    def reached(self, index: int, target: int) -> bool:
        """Whether a counter has reached `target`.

        Args:
            index: which counter.
            target: counted modulo 2**32.
        """
        if (self._words[index] - target) & _WRAP < _HALF:
            self._seen()
            return True
        return False

    def all_reached(self, indices: Sequence[int], target: int) -> bool:
        """Whether each of these counters has reached `target`.

        Args:
            indices: which counters.
            target: counted modulo 2**32.
        """
        words = self._words
        for index in indices:
            if (words[index] - target) & _WRAP >= _HALF:
                return False
        self._seen()
        return True

    def each_reached(self, counters: np.ndarray, target: int) -> bool:
        """Whether all counters of an array of uint32 have reached `target`, in a time that hardly grows with them.

        Args:
            counters: any shape; views of the shared memory.
            target: counted modulo 2**32.
        """
        if bool((counters - np.uint32(target & _WRAP) < _HALF).all()):
            self._seen()
            return True
        return False

    def wait(self, index: int, target: int, look: Callable[[float], None], advances: bool = False) -> None:
        """Wait until a counter has reached `target`.

        Args:
            index: which counter.
            target: the value.
            advances: whether it is set by `advance`.
            look: called now and then while waiting, with the seconds that this has taken so far; raises if there is
                nothing left to wait for.

        Raises:
            RankLost: another process has called `revoke`.
        """
        words = self._words
        if (words[index] - target) & _WRAP < _HALF:
            return self._seen()
        start = time.perf_counter()
        while time.perf_counter() < start + self._spin:
            for _ in range(10):
                if (words[index] - target) & _WRAP < _HALF:
                    return self._seen()
                if self._oversubscribed:
                    os.sched_yield()
        begin = time.monotonic()
        next_look = begin + LOOK_SECONDS
        if advances:
            words[self._asleep + (target & 1)] = target & _WRAP
        while True:
            value = words[index]
            if (value - target) & _WRAP < _HALF:
                return self._seen()
            if words[self._broken]:
                raise RankLost("another rank of this node has seen a rank die.")
            if time.monotonic() >= next_look:
                try:
                    look(time.monotonic() - begin)
                except Exception:
                    if not self.reached(index, target):  # it may have done its part, and ended since
                        raise
                next_look = time.monotonic() + LOOK_SECONDS
                if (words[index] - target) & _WRAP < _HALF:
                    return self._seen()
            if _futex is not None:
                _futex(self._address + 4 * index, _WAIT, value, _look_address)
            else:
                backoff(start)

    def _seen(self) -> None:
        if not _ordered:
            with _order:
                pass
