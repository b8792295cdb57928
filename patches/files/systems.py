"""Which ranks share a file system: those of one node, and those of nodes that see one another's files.

Ranks of several nodes find that out where a call first changes files below a mount point: one rank of each node puts an
empty file with a random name there, and all look which of them they see. For a command that is where it runs, whatever
files it has in mind.
"""

from __future__ import annotations

import contextlib
import os
import uuid

from matex_tf.core.world import World
from matex_tf.state import notes


class _Known(dict[tuple[int, str], list[int]]):
    """Of a world: for each generation of its ranks and each mount point, the rank that acts for each rank."""


def doers(ranks: World, folder: str) -> list[int]:
    """For each rank, the first rank of those with which it shares the file system of a path.

    Collective over ranks of several nodes.

    Args:
        ranks: of the job. folder: the path; it need not be there yet.
    """
    if len(ranks.nodes) == 1 or "://" in folder:
        return [0] * ranks.size
    place = _existing(folder)
    known, key = notes.of(ranks, _Known), (ranks.generation, _mount(place))
    mine = known.get(key)
    everyone = ranks.allgather((key[1], mine), "find the file systems that ranks share")
    if all(other is not None and other == everyone[0][1] for _, other in everyone):
        return everyone[0][1]
    known[key] = found = _probe(ranks, place)
    return found


def _probe(ranks: World, place: str) -> list[int]:
    name = f".matex-probe-{uuid.UUID(bytes=os.urandom(16)).hex}"
    path = os.path.join(place, name)
    made = False
    if ranks.local_rank == 0:
        with contextlib.suppress(OSError), open(path, "xb"):
            made = True
    names = ranks.allgather(name if made else "", "look for a file of each node")
    seen = tuple(bool(other) and os.path.exists(os.path.join(place, other)) for other in names)
    everyone = ranks.allgather((seen, ranks.node), "compare the files that ranks see")
    if made:
        with contextlib.suppress(OSError):
            os.remove(path)
    # A rank that sees no file, in a folder that it may not change, goes with its node.
    groups = [files if any(files) else node for files, node in everyone]
    return [groups.index(group) for group in groups]


def _existing(path: str) -> str:
    """The nearest folder of a path that is there."""
    path = os.path.abspath(path)
    while not os.path.isdir(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def _mount(path: str) -> str:
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path
