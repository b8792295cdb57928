"""Which ranks have which part of the variables that lie in parts, and copies of whose parts (`--shard-copies`).

The ranks stand in a ring, and each keeps copies of the parts of those before it. Neighbors in the ring are on different
nodes if there are several, so that a node that dies does not take a part and its copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from matex_tf.core.mismatch import name_ranks
from matex_tf.core.world import World
from matex_tf.errors import MatexError


class Layout:
    """Parts for the ranks that there were at a time. Ranks have the numbers here that they had at that time.

    Attributes:
        held: the ranks whose parts this rank has, its own first.
        ring: all ranks.
    """

    def __init__(self, ranks: World, copies: int):
        """Args: copies: how many other ranks have a copy of a part, if there are so many."""
        self._world, self._generation, self.size = ranks, ranks.generation, ranks.size
        self._left = list(range(ranks.size))  # by the numbers that ranks have now
        each = itertools.zip_longest(*ranks.nodes)
        self.ring = [rank for some in each for rank in some if rank is not None]
        self._copies = min(copies, ranks.size - 1)
        self.held = self._from(ranks.rank, -1)

    def is_of(self, ranks: World) -> bool:
        """Whether these are the ranks that there are now."""
        return self._world is ranks and self._generation == ranks.generation

    def _from(self, rank: int, step: int) -> list[int]:
        """A rank, and as many that follow it in the ring as there are copies."""
        place = self.ring.index(rank)
        return [self.ring[(place + step * index) % self.size] for index in range(1 + self._copies)]

    @property
    def to(self) -> list[int]:
        """The ranks that have copies of this rank's parts."""
        return self._from(self.held[0], 1)[1:]

    def leave(self, survivors: Sequence[int]) -> None:
        """Ranks have died. Args: survivors: the former numbers of the others."""
        self._left = [self._left[rank] for rank in survivors if rank < len(self._left)]  # others have come since

    def givers(self) -> list[list[int]]:
        """For each rank that there is now, whose parts it gives so that all have all.

        Raises:
            MatexError: a part is lost.
        """
        given: dict[int, list[int]] = {rank: [] for rank in self._left}
        for rank in range(self.size):
            has = [other for other in self._from(rank, 1) if other in given]
            if not has:
                others = self._from(rank, 1)[1:]
                also = f", and so did {name_ranks(sorted(others))}, with all copies of them" if others else ""
                raise MatexError(
                    f"--shard: {name_ranks([rank])} of {self.size} died with its parts of variables{also}. Give more "
                    "copies (--shard-copies), or take --faults restart."
                )
            given[has[0]].append(rank)
        return list(given.values())
