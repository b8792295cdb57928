"""Files that are open on a rank that dies, with `--faults shrink`: the next rank of the file system goes on with them.

All ranks have written the same to them. So the next rank knows how much should be there, skips what is, and says what
is missing: what the dead rank had not yet handed to the operating system.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matex_tf.core import world
from matex_tf.core.world import World
from matex_tf.patches.files import systems
from matex_tf.state import notes


@dataclass
class _Held:
    """Of a file that is open: the ranks that share it, by their first numbers; the one that has it; its name."""

    ranks: list[int]
    owner: int
    path: str


class _Watched:
    """Of a guard: that it says who goes on with files."""


def watch(file: Any, path: str, folder: str) -> None:
    """See to it that a file outlives the rank that has it. Collective over the ranks that have opened it.

    Args:
        file: what this rank has of it. Its method `take_over`, where it has one, makes it a file of this rank, and
            returns how many bytes are missing; without, what is written from then on is lost, which is said.
        path: its name; folder: where it is.
    """
    ranks = world.current()
    if ranks.guard is None:
        return
    doers = ranks.run_atomically(lambda: systems.doers(ranks, folder))
    owner = doers[ranks.rank]
    sharing = [ranks.first_ranks[rank] for rank, doer in enumerate(doers) if doer == owner]
    notes.put(file, _Held(sharing, ranks.first_ranks[owner], path))
    if not notes.has(ranks.guard, _Watched):
        notes.put(ranks.guard, _Watched())
        ranks.guard.on_change.append(lambda survivors: _inherit(ranks))


def _inherit(ranks: World) -> None:
    alive = set(ranks.first_ranks)
    for file in notes.having(_Held):
        held = notes.of(file, _Held)
        if held.owner in alive:
            continue
        dead, held.owner = held.owner, next(rank for rank in held.ranks if rank in alive)
        if held.owner != ranks.first_ranks[ranks.rank]:
            continue
        take_over = getattr(file, "take_over", None)
        if take_over is None:
            ranks.log(
                f"{held.path} was open on rank {dead}, which has died: what the script writes to it from now on is lost"
            )
        elif missing := take_over():
            ranks.log(f"{held.path} lacks {missing} bytes, which rank {dead} had not yet written when it died")
