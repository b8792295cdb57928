"""Reading is watched: a library that never returns is named, and in the end given up.

A damaged file can send the HDF5 library into a loop without end, in C, where it may hold Python's lock: no thread of
this process could say so. So it is watched by a process of its own (`_read_watcher.py`), which is started at the first
read and ends with this one. What is being read stands in memory that both share: which thread reads, since when, what.
A unit of work is one call of a library that opens a file, or that reads some megabytes of it.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from matex_tf import settings
from matex_tf.core import world
from matex_tf.errors import shortened
from matex_tf.state import run_state

#: A thread that reads: since when (0: it does not), its number for the system, the length of the text, the text.
SLOT = struct.Struct("dqq1000s")
SLOTS = 64

#: Seconds of computing in one unit of work after which it is given up in any case: a unit takes a few at most.
SPINNING_SECONDS = 300.0


class _Watch:
    """The process that watches this one."""

    def __init__(self) -> None:
        ranks, chosen = world.current(), settings.current()
        with tempfile.TemporaryFile() as shared:
            shared.truncate(SLOT.size * SLOTS)
            self._memory = mmap.mmap(shared.fileno(), SLOT.size * SLOTS)
            who = "this process" if ranks.is_single else f"rank {ranks.rank}"
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(Path(__file__).with_name("_read_watcher.py"))),
                    *(str(shared.fileno()), str(chosen.stall_seconds), str(chosen.stall_abort_seconds)),
                    *(str(SPINNING_SECONDS), f"{who} on {ranks.host}"),
                ],
                stdin=subprocess.PIPE,  # ends when this process does
                stdout=subprocess.DEVNULL,
                stderr=ranks.log_to,
                pass_fds=[shared.fileno()],
                start_new_session=True,  # Ctrl-C is for the ranks
                env={name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"},
            )
        self._free = list(range(SLOTS))

    def take(self) -> int | None:
        """A slot of its own for a thread; None where all are taken."""
        return self._free.pop() if self._free else None

    def give(self, slot: int) -> None:
        """Give a slot back."""
        self.put(slot, "")
        self._free.append(slot)

    def put(self, slot: int, text: str) -> None:
        """A unit of work begins, or ends where the text is empty."""
        at, raw = slot * SLOT.size, text.encode(errors="replace")[:1000]
        struct.pack_into("d", self._memory, at, 0.0)  # while the rest is not whole
        if raw:
            struct.pack_into("qq1000s", self._memory, at + 8, threading.get_native_id(), len(raw), raw)
            struct.pack_into("d", self._memory, at, time.monotonic())

    def close(self) -> None:
        """End it, as this process ends."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)

    def leave(self) -> None:
        """Let go of it in a process that was forked: the watch belongs to the other one."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        self._process.returncode = 0  # it is no child of this process
        self._process = None


class _Here(threading.local):
    """What this thread reads."""

    slot: int | None = None
    texts: tuple[str, ...] = ()


class Reading:
    """Of a run: one process watches this one, whichever thread reads first, and a fork leaves it to the parent."""

    def __init__(self) -> None:
        self.here, self.lock = _Here(), threading.Lock()
        self.watch: _Watch | None = None
        self.failed = False  # to start it: said once, and not tried again

    def started(self) -> _Watch | None:
        """What watches, from now on; None if it cannot be started."""
        with self.lock:
            if self.watch is None and not self.failed:
                try:
                    self.watch = _Watch()
                    atexit.register(self.watch.close)
                except OSError as error:
                    self.failed = True
                    world.current().log(f"reading files is not watched: no process can be started ({error.strerror})")
            return self.watch

    def forget(self) -> None:
        """In a process that was forked."""
        self.lock = threading.Lock()
        self.here.slot, self.here.texts = None, ()
        if self.watch is not None:
            self.watch.leave()
            self.watch = None


os.register_at_fork(after_in_child=lambda: run_state.part(Reading).forget())


@contextlib.contextmanager
def watched(path: str, doing: str) -> Iterator[None]:
    """A block of calls that read a file. Blocks may lie in one another.

    Args:
        path: the file.
        doing: in words that fit after "is being", such as "read (rows 0 to 53)".
    """
    reading = run_state.part(Reading)
    watch, here = reading.started(), reading.here
    if watch is None:
        yield
        return
    if here.slot is None:
        with reading.lock:
            here.slot = watch.take()
        if here.slot is None:
            yield
            return
    before = here.texts
    here.texts = (*before, f"{shortened(path, 300)} is being {doing}")
    try:
        watch.put(here.slot, here.texts[-1])
        yield
    finally:
        here.texts = before
        if before:
            watch.put(here.slot, before[-1])
        else:
            with reading.lock:
                watch.give(here.slot)
            here.slot = None


def goes_on() -> None:
    """Another unit of work begins in the block."""
    reading = run_state.part(Reading)
    if reading.watch is not None and reading.here.slot is not None:
        reading.watch.put(reading.here.slot, reading.here.texts[-1])
