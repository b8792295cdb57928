"""Threads that a case leaves behind, without those that cases before it have left in the same ranks.

What an earlier case has made is frozen for the garbage collector (see `worker.tidy`), so threads that end when it is
collected may stay.
"""

from __future__ import annotations

import threading

_before: set[threading.Thread] = set()


def begin() -> None:
    """A case begins: what runs now is not its own."""
    _before.clear()
    _before.update(threading.enumerate())


def threads(*names: str) -> int:
    """How many threads with these names the case has started that still run."""
    return sum(thread.name in names for thread in threading.enumerate() if thread not in _before)
