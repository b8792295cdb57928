"""Sums over virtual ranks whose bits do not depend on the ranks that there are.

The P values are added as a binary tree over P leaves, aligned to powers of two: ((0 + 1) + (2 + 3)) + (4 + 5). A rank
has the leaves of some virtual ranks in a row. It adds up those branches of the tree that it has whole; what is left is
the same tree over the branches of all ranks. Where each rank has one branch, and there are 1, 2, 4, … ranks on each of
1, 2, 4, … nodes, an allreduce is that tree: `reduction.add_up` on a node, `algorithms.doubling` and `rabenseifner`
between nodes. Elsewhere each branch has a place of its own in what is summed, which is zero on all other ranks, and
every rank adds up the branches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from matex_tf.core.row_partition import span
from matex_tf.core.world import World
from matex_tf.exchange import process_group
from matex_tf.exchange.bucket import BucketPlan, empty
from matex_tf.exchange.node.reduction import add_up


def branches(first: int, last: int, virtual: int) -> list[tuple[int, int]]:
    """The largest branches of the tree over `virtual` leaves that lie between two leaves.

    Args:
        first, last: the first leaf, and one past the last.
        virtual: how many leaves the tree has.

    Returns:
        The first leaf of each, and one past its last; in their order.
    """
    found = []
    while first < last:
        size = 1
        while first % (2 * size) == 0 and min(first + 2 * size, virtual) <= last and first + size < virtual:
            size *= 2
        found.append((first, min(first + size, virtual)))
        first = found[-1][1]
    return found


class OrderedSum:
    """Sums of arrays of the same shapes and dtypes, again and again."""

    def __init__(self, virtual: int, what: str, labels: Sequence[str]):
        """Args: virtual: how many virtual ranks there are. what, labels: see `process_group.sum_arrays`."""
        self._virtual = virtual
        self._what = what
        self._labels = list(labels)
        self._plan: BucketPlan | None = None

    def __call__(self, world: World, values: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
        """Sum over all virtual ranks; collective over the world.

        Args:
            values: for each virtual rank of this rank, its arrays; of dtypes that are summed as themselves.
        """
        first, last = span(self._virtual, world.rank, world.size)
        own = [
            [_added(leaves) for leaves in zip(*values[begin - first : end - first], strict=True)]
            for begin, end in branches(first, last, self._virtual)
        ]
        if world.is_single:
            return own[0]
        if self._sums_as_tree(world):
            return self._sum(world, own[0])
        return self._by_branches(world, own)

    def every(self, world: World, values: np.ndarray) -> np.ndarray:
        """What each virtual rank has: (virtual ranks of this rank, n) to (all virtual ranks, n). Collective.

        Args:
            values: of a dtype that is summed as itself.
        """
        if world.is_single:
            return values
        first, last = span(self._virtual, world.rank, world.size)
        whole = np.zeros((self._virtual, *values.shape[1:]), values.dtype)
        whole[first:last] = values
        return self._sum(world, [whole])[0]

    def of_every(self, world: World, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What each virtual rank has, see `every`, and its sum over them. Collective."""
        whole = self.every(world, values)
        total = np.empty_like(whole[0])
        add_up(list(whole), total)
        return whole, total

    def _sums_as_tree(self, world: World) -> bool:
        """Whether an allreduce over the ranks adds as the tree does."""
        size = world.size // len(world.nodes)
        in_order = [[*range(first, first + size)] for first in range(0, world.size, size)]
        powers = all(not count & (count - 1) for count in (self._virtual, world.size, size))
        return powers and world.nodes == in_order

    def _sum(self, world: World, arrays: list[np.ndarray]) -> list[np.ndarray]:
        shapes = [array.shape for array in arrays]
        if self._plan is None or self._plan.shapes != shapes:
            self._plan = BucketPlan.of(self._what, self._labels[: len(arrays)], arrays, at_once=True)
        plan = self._plan
        return world.run_atomically(lambda: process_group.sum_planned(world, plan, arrays))

    def _by_branches(self, world: World, own: list[list[np.ndarray]]) -> list[np.ndarray]:
        spans = [branches(*span(self._virtual, rank, world.size), self._virtual) for rank in range(world.size)]
        before, everyone = sum(map(len, spans[: world.rank])), sum(map(len, spans))
        places = []
        for position, array in enumerate(own[0]):
            place = np.zeros((everyone, *array.shape), array.dtype)
            for number, branch in enumerate(own):
                place[before + number] = branch[position]
            places.append(place)
        every = [branch for rank in spans for branch in rank]
        return [_tree(every, list(place), self._virtual) for place in self._sum(world, places)]


def _added(values: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of the leaves of one branch. No zero has a sign, so that adding zeros of other ranks changes no bit."""
    total = empty(values[0].size, values[0].dtype)
    add_up([value.reshape(-1) for value in values], total)
    if total.dtype.kind == "f":
        np.add(total, 0, out=total)
    return total.reshape(values[0].shape)


def _tree(every: list[tuple[int, int]], values: list[np.ndarray], virtual: int) -> np.ndarray:
    """The sum of all branches."""
    known = dict(zip((begin for begin, _ in every), zip((end for _, end in every), values, strict=True), strict=True))

    def total(begin: int, size: int) -> np.ndarray:
        if begin in known and known[begin][0] == min(begin + size, virtual):
            return known[begin][1]
        half = size // 2
        left = total(begin, half)
        with np.errstate(all="ignore"):
            return left if begin + half >= virtual else np.add(left, total(begin + half, half))

    return total(0, 1 << (virtual - 1).bit_length())
