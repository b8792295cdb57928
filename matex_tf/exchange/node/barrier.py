"""Ranks that come to the same point: counters and signs in shared memory, and an agreement between nodes.

A rank that has done its part sets a counter, and waits for those of the others. Beside the counter stands what the rank
is about to do, as two checksums: so every exchange is a meeting as well, see `World.barrier`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from matex_tf.core import trace
from matex_tf.core.mismatch import name_ranks
from matex_tf.core.waiting import StallDetector, wait_until
from matex_tf.errors import RankLost
from matex_tf.exchange.network.compressed_ring import CompressedRing
from matex_tf.exchange.network.lane import Lane
from matex_tf.exchange.node.futex import Counters
from matex_tf.exchange.node.interface import Node, SharedMemory

_LINE = 64  # words of a rank's control line: 256 bytes, so that no two ranks write to one cache line
_PROGRESS, _DELIVERED, _JUDGED, _SIGNS = 0, 16, 32, 48
_ASLEEP, _BROKEN = 56, 63  # of rank 0's line; the first is two words, see `Counters.advance`
#: From so many ranks of a node on, numpy looks at their control lines in less time than Python does.
_MANY = 33
_SIGN = 4  # words of a sign: what, detail, held, verdict; two of them in turn


class Meeting(NamedTuple):
    """Who meets, and how.

    Attributes:
        node: the ranks of this node.
        lanes: slices of a chunk, the same on every node; the first so many ranks of each node have one each, and so
            counterparts on the others.
        lane: the counterparts of this rank on the other nodes; None where it has none.
        networked: whether there are other nodes.
        oversubscribed: whether ranks of this node share cores.
        stalls: what to do about ranks that do not come.
    """

    node: Node
    lanes: int
    lane: Lane | None
    networked: bool
    oversubscribed: bool
    stalls: StallDetector | None = None


class CheckedBarrier:
    """Where the ranks of a world meet, call after call.

    Ranks may be at most one call apart: who is in call n + 1 knows that all have begun it, and so have ended n.
    That is why two of everything, used in turn, suffice.

    Attributes:
        doing: what the ranks are about, in words.
    """

    def __init__(self, meeting: Meeting, room: int):
        """Collective over the node. Args: room: bytes of shared memory beside what a meeting needs.

        Raises:
            OutOfSharedMemory: on every rank of the node.
        """
        node = meeting.node
        self._node, self._lanes, self._lane, self._networked = meeting[:4]
        self._lock = threading.RLock()
        self._looks = [functools.partial(self._look, rank) for rank in range(node.size)]
        self._stalls, self._awaited, self.doing = meeting.stalls, (0, 0), ""
        self._calls = self._done = self._given = 0
        lines = -(-node.size * _LINE * 4 // 4096) * 4096
        self._segment: SharedMemory = node.segment(lines + room)
        self._words = self._segment.words()
        self._counters = Counters(self._words, self._segment.address, meeting.oversubscribed, _BROKEN, _ASLEEP)
        many = node.size >= _MANY
        self._lines = np.asarray(self._words)[: node.size * _LINE].reshape(node.size, _LINE) if many else None
        self._others = [rank * _LINE + _PROGRESS for rank in range(node.size) if rank != node.rank]
        self._room = self._segment.bytes()[lines:]

    def revoke(self) -> None:
        """Let no rank of the node wait here any longer: a rank has died."""
        lines = range(0, self._node.size * _LINE, _LINE)
        self._counters.revoke([line + word for line in lines for word in (_PROGRESS, _DELIVERED, _JUDGED)])

    def wait(self, what: int, detail: int, held: int = 0) -> tuple[bool, int]:
        """Wait until every rank is here.

        Args:
            what, detail: checksums of what this rank is about to do.
            held: bits that the ranks of the node tell one another.

        Returns:
            Whether all ranks are about to do the same, and the bits that any rank of the node gave.
        """
        with self._lock:
            self._sign(what, detail, held)
            self._advance()
            self._await_all()
            agreed, held = self._compare()
            agreed = self._judge(agreed)
            self._calls += 1
            return agreed, held

    def _pass_on(self) -> None:
        """Wait until the sums over all nodes are there, on every lane."""
        if self._lane is not None:
            self._lane.finish()
            self._counters.set(self._node.rank * _LINE + _DELIVERED, self._given + 1)
        self._given += 1
        self._await(_DELIVERED, range(self._lanes), self._given)

    def _sign(self, what: int, detail: int, held: int) -> None:
        place = self._node.rank * _LINE + _SIGNS + _SIGN * (self._calls & 1)
        words = self._words
        words[place], words[place + 1], words[place + 2] = what, detail, held

    def _same(self, what: int, detail: int) -> bool:
        """Whether the signs of all ranks of the node are this rank's."""
        if self._lines is not None:
            return self._compare()[0]
        words, place, same = self._words, _SIGNS - _PROGRESS + _SIGN * (self._calls & 1), True
        for progress in self._others:
            if words[progress + place] != what or words[progress + place + 1] != detail:
                same = False
        return same

    def _compare(self) -> tuple[bool, int]:
        """Whether the signs of all ranks of the node are the same, and what any of them holds."""
        words, place = self._words, _SIGNS + _SIGN * (self._calls & 1)
        if self._lines is not None:
            signs = self._lines[:, place : place + 3]
            return bool((signs[:, :2] == signs[0, :2]).all()), int(np.bitwise_or.reduce(signs[:, 2]))
        what, detail, held, agreed = words[place], words[place + 1], 0, True
        for _ in range(self._node.size):
            if words[place] != what or words[place + 1] != detail:
                agreed = False
            held |= words[place + 2]
            place += _LINE
        return agreed, held

    def _judge(
        self,
        agreed: bool,
        sums: np.ndarray | None = None,
        place: np.ndarray | None = None,
        coded: CompressedRing | None = None,
        residual: np.ndarray | None = None,
    ) -> bool:
        """Whether all nodes agree as well: the first rank of each asks the others.

        Args:
            agreed: whether the ranks of this node do.
            sums: on the first rank of a node, what is to be summed over nodes if all agree.
            place: shared memory, where those sums go.
            coded, residual: see `Lane.start`.
        """
        if not self._networked:
            return agreed
        words, verdict = self._words, _SIGNS + _SIGN * (self._calls & 1) + 3
        if self._node.rank == 0:
            assert self._lane is not None
            # A node at odds with itself says what no other can say.
            sign = (words[verdict - 3], words[verdict - 2]) if agreed else (-1 - self._lane.rank, 0)
            together = sums is not None and sums.nbytes <= self._lane.together_bytes
            agreed = self._lane.agree(sign, sums if together else None) and agreed
            if agreed and sums is not None and place is not None:
                if not together:
                    self._lane.start(sums, None, coded, residual)
                    self._lane.finish()
                np.copyto(place, sums, casting="unsafe")
            words[verdict] = agreed
            self._counters.set(_JUDGED, self._calls + 1)
        self._await(_JUDGED, [0], self._calls + 1)
        return bool(words[verdict])

    def _advance(self) -> None:
        self._done += 1
        self._counters.advance(self._node.rank * _LINE + _PROGRESS, self._done)

    def _await_all(self) -> None:
        if self._lines is not None:
            there = self._counters.each_reached(self._lines[:, _PROGRESS], self._done)
        else:
            there = self._counters.all_reached(self._others, self._done)
        if not there:
            self._await(_PROGRESS, range(self._node.size), self._done)

    def _look(self, rank: int, seconds: float) -> None:
        """While this rank waits for another one of the node: see that it is there, and does not take too long."""
        self._node.still_there(rank)
        if self._stalls is not None and seconds >= self._stalls.soonest:
            word, target = self._awaited
            waited_for = range(self._node.size) if word == _PROGRESS else [rank]
            missing = [r for r in waited_for if not self._counters.reached(r * _LINE + word, target)]
            if missing:
                self._report(self._stalls, missing, seconds)

    def _report(self, stalls: StallDetector, missing: Sequence[int], seconds: float) -> None:
        """Say that ranks of the node are missing, and in the end do without them."""
        who = f"{name_ranks([self._node.ranks[rank] for rank in missing])} on {self._node.host}"
        speaker = min(set(range(self._node.size)) - set(missing))
        dead = stalls.report(who, seconds, self.doing, speaks=self._node.rank == speaker)
        if dead and not stalls.survive:
            raise RankLost(dead)
        for rank in missing if dead else ():
            self._node.kill(rank)

    def _await(self, word: int, ranks: Sequence[int], target: int) -> None:
        self._awaited = word, target
        with trace.span("wait"):
            for rank in ranks:
                if rank == self._node.rank:
                    continue
                index = rank * _LINE + word
                if self._lane is not None and self._lane.busy:
                    # The rank that is waited for may itself wait for another node, and that one for these messages.
                    self._drive(self._lane, index, target)
                self._counters.wait(index, target, self._looks[rank], word == _PROGRESS)

    def _drive(self, lane: Lane, index: int, target: int) -> None:
        """Move messages on, until there are none or a counter has reached its target."""
        wait_until(lambda: not lane.busy or self._counters.reached(index, target), lane.progress)
