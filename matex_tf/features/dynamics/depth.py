"""Repeated residual blocks: which there are, for networks that begin with some of them.

A block adds something to a stream of channels: x + f(x). A block that has not begun has two channels within f, and is
not computed at all where `resting` can leave it out. Elsewhere these are read with weights of 0 at first, so that it
gives x (but for its bias), at next to no cost. It stays in the model and in files; it begins when its channels come.
"""

from __future__ import annotations

from collections.abc import Iterator

from matex_tf.features.dynamics.channels.analysis import MAKES, READS, Part
from matex_tf.features.dynamics.groups import Group, Groups, can_change

Channels = tuple[int, ...]


def repeated(groups: Groups) -> list[list[str]]:
    """The blocks that repeat an earlier one, in their order: for each the names of the groups within it.

    The first block of a stage may read another stream than it adds to, and so be of the same kind but for that; it
    never waits.
    """
    incoming = {(id(part.variable), part.axis) for part in groups.analysis.parts if part.role == READS}
    seen, found = set(), []
    for inner, same_stream in branches(groups):
        kind = tuple(_kind(part, incoming if group is inner[0] else set()) for group in inner for part in group.parts)
        if kind in seen and same_stream:
            found.append([group.name for group in inner])
        seen.add(kind)
    return found


def branches(groups: Groups) -> Iterator[tuple[list[Group], bool]]:
    """The groups within each residual branch, from where it reads a stream to where it adds to one.

    Yields:
        The groups, and whether it reads and adds to the same stream.
    """
    reads, makes = _channels_by_layer(groups, READS), _channels_by_layer(groups, MAKES)
    makers: dict[Channels, set[int]] = {}
    for layer, several in makes.items():
        for one in several:
            makers.setdefault(one, set()).add(layer)
    changing = [group for group in groups if can_change(group)]
    used: set[str] = set()
    for first in changing:
        if first.name in used:
            continue
        inner, group = [first], first
        streams = {one for part in first.made_by() for one in reads.get(id(part.layer), ())} - {_key(first)}
        while True:
            readers = {id(part.layer) for part in group.read_by()}
            given = {one for layer in readers for one in makes.get(layer, ())} - {_key(group)}
            if given and (given <= streams or all(makers[one] - readers for one in given)):
                used.update(one.name for one in inner)
                yield inner, given <= streams
                break
            following = [one for one in changing if {_key(one)} == given and one not in inner]
            if len(following) != 1 or len(inner) > 3:
                break
            group = following[0]
            inner.append(group)


def _channels_by_layer(groups: Groups, role: str) -> dict[int, list[Channels]]:
    """What each layer reads, or makes, in a kernel."""
    found: dict[int, list[Channels]] = {}
    for part in groups.analysis.parts:
        if part.role == role and len(part.variable.shape) > 1:
            found.setdefault(id(part.layer), []).append(tuple(dict.fromkeys(part.channels.tolist())))
    return found


def _kind(part: Part, incoming: set[tuple[int, int]]) -> tuple[str, tuple[int, ...], int]:
    """What kind of a place in a layer a part is, whatever number of channels comes in along some axes."""
    sizes = (0 if (id(part.variable), axis) in incoming else size for axis, size in enumerate(part.variable.shape))
    return type(part.layer).__name__, tuple(sizes), part.axis


def _key(group: Group) -> Channels:
    return tuple(group.channels.tolist())
