"""Which rank makes which batch, and which one makes it too, to compare."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from matex_tf.core import world

#: Of so many batches one is made by a second rank as well; and of the first ones about those whose numbers are powers
#: of 2.
_CHECKED = 64


class Makers:
    """Which rank makes which batch: all ranks in turn.

    Attributes:
        count: batches of a walk; None where nobody knows before it has ended.
        ahead: how many batches are made before they are wanted.
        first: the rank that makes batch 0 for this rank.
        takers: the ranks that have rows of what this rank makes, but for itself.
        alone: whether `first` makes all batches for this rank.
        checkers: by batch of this walk: the rank that makes it too.
    """

    def __init__(self, count: int):
        ranks = world.current()
        self.count: int | None = count
        self.ahead, self.first, self.alone = ranks.size + 1, 0, False
        self.takers = [rank for rank in range(ranks.size) if rank != ranks.rank]
        self.checkers: dict[int, int] = {}
        self._walked = 0

    def begin(self, count: int) -> None:
        """A walk over so many batches begins: choose which of them a second rank makes too.

        That is the rank whose turn it was before, for a batch that is not its maker's first of a round: so what draws
        or counts has done that once more on one of the two.
        """
        size = world.current().size
        everyone = range(self._walked, self._walked + count)
        due = {place for place, number in enumerate(everyone) if number & number - 1 == 0 or number % _CHECKED == 0}
        due |= {count - 1} if not self._walked else set()
        rounds = sorted({place - place % size for place in due})
        self.checkers = {first + 1: self.of(first) for first in rounds if first + 1 < count}
        self.count = count
        self._walked += count

    def of(self, number: int) -> int:
        """The rank that makes a batch for this rank."""
        return self.first if self.alone else number % world.current().size

    def mine(self) -> Iterable[int]:
        """The batches that this rank makes, as far as `count` is known, and those that it checks."""
        rank = world.current().rank
        if self.alone:
            return itertools.count() if self.first == rank else ()
        return [number for number in range(self.count or 0) if rank in (self.of(number), self.checkers.get(number))]

    def numbers(self) -> Iterable[int]:
        """All batches."""
        return itertools.count() if self.count is None else range(self.count)


class FirstOfNode(Makers):
    """The first rank of each node makes all batches, of which nobody knows how many there are, for its node."""

    def __init__(self) -> None:
        super().__init__(0)
        ranks = world.current()
        of_node = ranks.nodes[ranks.node]
        self.count, self.ahead, self.first, self.alone = None, 2, of_node[0], True
        self.takers = [rank for rank in of_node if rank != ranks.rank] if ranks.rank == self.first else []
