"""Who sends what, to whom, and when: decided here alike for training and for who simulates it.

No network, no clock and no weights.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """Numbers that one server keeps: `low` to `high` of its piece, which are `here` of a rank's part."""

    piece: int
    size: int
    low: int
    high: int
    here: slice


def spans(total: int, parts: int) -> list[tuple[int, int]]:
    """`total` numbers in `parts` contiguous parts, first and one past the last of each; some may be empty."""
    return [(part * total // parts, (part + 1) * total // parts) for part in range(parts)]


def ranges(total: int, servers: int, part: tuple[int, int], first: int = 0) -> list[Range]:
    """What a rank asks of which server at a meeting, in the order in which it sends.

    Args:
        total: numbers of the center.
        servers: how many keep a piece of it each.
        part: first and one past the last of the numbers that the rank exchanges for its group.
        first: the piece that it begins with; another for each rank, so that they do not all send to one server.
    """
    found = []
    pieces = list(enumerate(spans(total, servers)))
    for piece, (low, high) in [*pieces[first % servers :], *pieces[: first % servers]]:
        begin, end = max(low, part[0]), min(high, part[1])
        if begin < end:
            found.append(Range(piece, high - low, begin - low, end - low, slice(begin - part[0], end - part[0])))
    return found


class Meetings:
    """When a group meets the center: every so many steps of its own, and not before the last meeting has ended.

    Args:
        every: steps from one meeting to the next.
    """

    def __init__(self, every: int):
        self.every = every
        self._last = 0

    def due(self, steps: int) -> bool:
        """Whether the group, which has made so many steps, meets the center now; it has to begin to then."""
        if steps - self._last < self.every:
            return False
        self._last = steps
        return True

    def left_over(self, steps: int) -> bool:
        """Whether the group, which is about to wait for others, has made a step since its last meeting."""
        left, self._last = steps > self._last, steps
        return left


#: How many groups one server deals parts of batches to one by one, and the most parts that it deals at once.
_ONE_BY_ONE, _MOST_PARTS = 100, 16

#: The most parts that a group asks for ahead.
_MOST_AHEAD = 8


def parts_at_once(groups: int) -> int:
    """How many parts of batches a group gets when it asks for some: one, and more where there are many groups, since
    one server deals to all of them. What a group has got others do not take from it, so these are few."""
    return min(_MOST_PARTS, -(-groups // _ONE_BY_ONE))


class Supply:
    """How many parts of batches a group asks for ahead of the one that it trains on, so that it waits for none.

    Attributes:
        ahead: so many; one more after each wait, and one less in each epoch, as others wait for its parts at the end.
    """

    def __init__(self) -> None:
        self.ahead = 1

    def waited(self) -> None:
        """A part has come later than the group wanted it."""
        self.ahead = min(self.ahead + 1, _MOST_AHEAD)

    def begin_epoch(self) -> None:
        """Parts are dealt out anew."""
        self.ahead = max(1, self.ahead - 1)


def answered_at(clock: float, staleness: int) -> float:
    """How many steps the slowest group must have made before a push is answered (Ho et al., 2013).

    Args:
        clock: the steps of the group that pushes, with the one that it pushes.
    """
    return clock - staleness
