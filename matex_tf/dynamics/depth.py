"""Repeated residual blocks: which there are, for networks that begin with some of them.

A block adds something to a stream of channels: x + f(x). Where the channels within f are few and nothing is read from
them, the block gives x (but for its bias), at next to no cost. So a block that has not begun yet is one whose inner
channels are two, read with weights of 0; it stays in the model and in its files, and begins when its channels come.
"""

from __future__ import annotations

from collections.abc import Iterator

from matex_tf.dynamics.channels.analysis import MAKES, READS
from matex_tf.dynamics.groups import Group, Groups, can_change

Channels = tuple[int, ...]


def repeated(groups: Groups) -> list[list[str]]:
    """The blocks that repeat an earlier one, in their order: for each the names of the groups within it."""
    seen, found = set(), []
    for inner in branches(groups):
        kind = tuple(
            (type(part.layer).__name__, tuple(part.variable.shape), part.axis)
            for group in inner
            for part in group.parts
        )
        if kind in seen:
            found.append([group.name for group in inner])
        seen.add(kind)
    return found


def branches(groups: Groups) -> Iterator[list[Group]]:
    """The groups within each residual branch, from where it reads a stream to where it adds to the same one."""
    reads: dict[int, list[Channels]] = {}  # by layer
    makes: dict[int, list[Channels]] = {}
    for part in groups.analysis.parts:
        of = {READS: reads, MAKES: makes}.get(part.role)
        if of is not None and len(part.variable.shape) > 1:
            of.setdefault(id(part.layer), []).append(tuple(dict.fromkeys(part.channels.tolist())))
    changing = [group for group in groups if can_change(group)]
    used: set[str] = set()
    for first in changing:
        if first.name in used:
            continue
        inner, group = [first], first
        streams = {one for part in first.made_by() for one in reads.get(id(part.layer), ())} - {_key(first)}
        while True:
            given = {one for part in group.read_by() for one in makes.get(id(part.layer), ())} - {_key(group)}
            if given and given <= streams:
                used.update(one.name for one in inner)
                yield inner
                break
            following = [one for one in changing if {_key(one)} == given and one not in inner]
            if len(following) != 1 or len(inner) > 3:
                break
            group = following[0]
            inner.append(group)


def _key(group: Group) -> Channels:
    return tuple(group.channels.tolist())
