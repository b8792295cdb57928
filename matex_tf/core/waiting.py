"""How a rank waits for what it has to ask about again and again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_YIELD_SECONDS, LONGEST_SLEEP = 3e-4, 1e-3


def wait_until(done: Callable[[], bool], progress: Callable[[], bool] | None = None) -> None:
    """Ask until the answer is yes, without burning the core that another rank may need.

    Args:
        progress: called in between; moves on what is waited for, and says whether anything moved.
    """
    begin = time.perf_counter()
    while not done():
        if progress is not None and progress():
            begin = time.perf_counter()
        else:
            backoff(begin)


def backoff(begin: float, longest: float = LONGEST_SLEEP) -> None:
    """What a wait does that has nothing to do: give the core away at first, then sleep for an eighth of what it has
    taken so far: late by no more than that, and at little cost.

    Args:
        begin: when it began (`time.perf_counter`).
        longest: seconds that it sleeps for at most.
    """
    waited = time.perf_counter() - begin
    if waited < _YIELD_SECONDS:
        os.sched_yield()
    else:
        time.sleep(min(waited / 8, longest))
