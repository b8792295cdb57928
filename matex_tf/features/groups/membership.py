"""Which ranks train, and which of them train as one: groups (`--groups`) and the ranks that only serve (`--servers`).

A group is a world of its own inside the world: what is exchanged in a step goes over its ranks alone. All else, such as
evaluation, metrics and saving, goes over the world.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from matex_tf.core.world import World
from matex_tf.errors import SettingError


class Groups:
    """The groups of a world, as one of its ranks sees them.

    Attributes:
        members: the ranks of each group, by the numbers that they had before any has died.
        number: the group of this rank.
        whole: all of them.
        world: the ranks of this group; its `part_of` is the world.
    """

    def __init__(self, whole: World, members: Sequence[Sequence[int]]):
        """Make the worlds of all groups. Collective over the world.

        Args:
            members: each rank once.
        """
        self.members = [list(ranks) for ranks in members]
        self.whole = whole
        self.number = next(number for number, ranks in enumerate(members) if whole.rank in ranks)
        ranks = self.members[self.number]
        self.world = whole.part(self.number, ranks.index(whole.rank))

    @property
    def count(self) -> int:
        """How many groups there were at first."""
        return len(self.members)

    def rows(self, total: int) -> list[tuple[int, int]]:
        """For each group its part of a batch, in proportion to its ranks that are left: first row, one past the last.

        Args:
            total: rows of the batch.
        """
        left = [sum(rank in self.whole.first_ranks for rank in members) for members in self.members]
        before, parts = 0, []
        for ranks in left:
            parts.append((before * total // sum(left), (before + ranks) * total // sum(left)))
            before += ranks
        return parts


def of(world: World, text: str) -> Groups:
    """The groups of a world, made where it is asked for them first. Collective.

    Args:
        text: as `--groups` has it.
    """
    if world.within is None or world.within[0] != text:
        world.within = text, Groups(world, parse(text, world.hosts))
    found: Groups = world.within[1]
    return found


def parse(text: str, hosts: Sequence[str]) -> list[list[int]]:
    """The ranks of each group.

    Args:
        text: empty for groups of one rank; a number of groups; `host`; or lists of ranks such as `0-3/4,6/5,7`.
        hosts: the host of each rank.

    Raises:
        SettingError: the text is something else, or does not name each rank once.
    """
    size = len(hosts)
    if not text:
        return [[rank] for rank in range(size)]
    if text == "host":
        return [[rank for rank in range(size) if hosts[rank] == host] for host in dict.fromkeys(hosts)]
    if text.isdigit() and int(text):
        count = int(text)
        if count > size:
            raise SettingError(f"--groups asks for {count} groups, and there are {size} ranks: take at most {size}.")
        return [list(range(group * size // count, (group + 1) * size // count)) for group in range(count)]
    found = _listed(text)
    flat = [rank for group in found for rank in group]
    if sorted(flat) != list(range(size)):
        twice = sorted({rank for rank in flat if flat.count(rank) > 1})
        wrong = [rank for rank in flat if rank >= size]
        missing = [rank for rank in range(size) if rank not in flat]
        what = f"{twice[0]} is in it twice" if twice else f"there is no {wrong[0]}" if wrong else f"{missing[0]} is not"
        raise SettingError(f"--groups {text} must name each of ranks 0 to {size - 1} once: {what}.")
    return found


def check(text: str, ranks: int = 0) -> None:
    """Refuse a text that names no groups, or none of so many ranks.

    Args:
        ranks: how many train; 0 where nobody knows yet.

    Raises:
        SettingError: it is no number, not `host`, and no list of ranks; or these ranks cannot be in such groups.
    """
    if text and text != "host" and not (text.isdigit() and int(text)):
        _listed(text)
    if ranks > 1 and text != "host":
        parse(text, [""] * ranks)


def _listed(text: str) -> list[list[int]]:
    """The ranks of each group of `0-3,6/4-5`."""
    groups: list[list[int]] = []
    for part in text.split("/"):
        groups.append([])
        for piece in part.split(","):
            found = re.fullmatch(r"(\d+)(?:-(\d+))?", piece.strip())
            if found is None or int(found[2] or found[1]) < int(found[1]):
                raise SettingError(f"--groups is {text!r}; it can be a number, host, or ranks as in 0-3/4-7.")
            groups[-1] += range(int(found[1]), int(found[2] or found[1]) + 1)
    return groups
