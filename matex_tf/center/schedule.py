"""Who sends what, to whom, and when: decided here for training and for `matex_tf.planning.simulation` alike.

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
    """`total` numbers in so many contiguous parts, first and one past the last; some may be empty."""
    return [(part * total // parts, (part + 1) * total // parts) for part in range(parts)]


def ranges(total: int, servers: int, part: tuple[int, int]) -> list[Range]:
    """What a rank asks of which server at a meeting, in the order in which it sends.

    Args:
        total: numbers of the center.
        servers: how many keep a piece of it each.
        part: first and one past the last of the numbers that the rank exchanges for its group.
    """
    found = []
    for piece, (low, high) in enumerate(spans(total, servers)):
        first, last = max(low, part[0]), min(high, part[1])
        if first < last:
            found.append(Range(piece, high - low, first - low, last - low, slice(first - part[0], last - part[0])))
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
        """The same where the group is about to wait for others: whether it has made a step since its last meeting."""
        left, self._last = steps > self._last, steps
        return left


def answered_at(clock: float, staleness: int) -> float:
    """How many steps the slowest group must have made before a push is answered (Ho et al., 2013).

    Args:
        clock: the steps of the group that pushes, with the one that it pushes.
    """
    return clock - staleness
