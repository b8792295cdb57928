"""Ranks that are alive and do not come: stopped, swapping, stuck on a full disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from matex_tf.core.mismatch import name_ranks
from matex_tf.errors import RankLost
from matex_tf.exchange.node.shared_memory import NodeMemory


class StallDetector:
    """Says who is missing, and in the end does without them.

    Attributes:
        soonest: seconds of waiting before which there is nothing to do.
    """

    def __init__(self, tell_after: float, end_after: float, survive: bool, say: Callable[[str], None]):
        """What to do about ranks of the own node that do not come.

        Args:
            tell_after: seconds of waiting until a line says so; 0 for never.
            end_after: seconds until they count as dead; 0 for never.
            survive: whether the others then go on without them.
            say: prints a line.
        """
        self._tell_after, self._end_after, self._survive, self._say = tell_after, end_after, survive, say
        self._told_of: tuple[str, tuple[int, ...]] | None = None
        given = [seconds for seconds in (tell_after, end_after) if seconds]
        self.soonest = min(given) if given else float("inf")

    def report(self, node: NodeMemory, missing: Sequence[int], seconds: float, doing: str) -> None:
        """Say that ranks are missing, once, or do something about it.

        Args:
            missing: ranks of the node.
            seconds: how long they have been waited for.
            doing: what they are missing from.

        Raises:
            RankLost: they count as dead, and so nobody goes on.
        """
        if not missing:
            return
        who = f"{name_ranks([node.ranks[rank] for rank in missing])} on {node.host}"
        incident = doing, tuple(missing)
        speaker = min(set(range(node.size)) - set(missing))
        if self._tell_after and seconds >= self._tell_after and incident != self._told_of:
            self._told_of = incident
            if node.rank == speaker:
                since = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
                self._say(f"{who} missing since {since} ({seconds:.0f} s) from {doing}")
        if self._end_after and seconds >= self._end_after:
            if not self._survive:
                raise RankLost(
                    f"{who} missing for {seconds:.0f} s from {doing}, which counts as dead (--stall-abort-seconds)."
                )
            for rank in missing:
                node.kill(rank)
