"""How a rank waits for what it has to ask about again and again; and ranks that are alive and do not come: stopped,
swapping, stuck on a full disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from matex_tf.core.mismatch import name_ranks
from matex_tf.errors import MatexError

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


class StallDetector:
    """Says who is missing, as `--stall-seconds` has it, and when they count as dead: `--stall-abort-seconds`.

    Attributes:
        soonest: seconds of waiting before which there is nothing to do.
        survive: whether the others go on without those that count as dead.
    """

    def __init__(self, tell_after: float, end_after: float, say: Callable[[str], None], survive: bool = False):
        """What to do about ranks that do not come.

        Args:
            tell_after: seconds of waiting until a line says so; 0 for never.
            end_after: seconds until they count as dead; 0 for never.
            say: prints a line.
            survive: see above.
        """
        self._tell_after, self._end_after, self._say = tell_after, end_after, say
        self.survive = survive
        self._said: tuple[str, str] | None = None
        self.soonest = min((seconds for seconds in (tell_after, end_after) if seconds), default=float("inf"))

    def report(self, who: str, seconds: float, doing: str, speaks: bool = True) -> str:
        """Say that ranks are missing, once for as long as they are.

        Args:
            who: the ranks.
            seconds: how long they have been waited for.
            doing: what they are missing from.
            speaks: whether it is this rank that says so.

        Returns:
            Why they count as dead; "" where they do not.
        """
        if seconds < self._tell_after:
            self._said = None
        elif self._tell_after and self._said != (who, doing):
            self._said = who, doing
            if speaks:
                since = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
                self._say(f"{who} missing since {since} ({seconds:.0f} s) from {doing}")
        if self._end_after and seconds >= self._end_after:
            return f"{who} missing for {seconds:.0f} s from {doing}, which counts as dead (--stall-abort-seconds)."
        return ""

    def check(self, ranks: Sequence[int], seconds: float, doing: str) -> None:
        """To be called now and then by a rank that waits for one of these.

        Args:
            ranks: those that are waited for.
            seconds: how long it has waited.
            doing: the purpose, for messages.

        Raises:
            MatexError: that one counts as dead.
        """
        who = name_ranks(ranks) if len(ranks) == 1 else f"one of {name_ranks(ranks)}"
        if dead := self.report(who, seconds, doing):
            raise MatexError(dead)
