"""While one rank writes a file and the others wait, what it reads of variables in parts they gather with it.

The others wait for the word that the file is written. Instead of it a question may come: which variable to gather.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from matex_tf import settings
from matex_tf.core import world
from matex_tf.errors import RanksDisagree
from matex_tf.patches.shards.layout import Layout
from matex_tf.state import run_state

if TYPE_CHECKING:
    from matex_tf.patches.shards.variable import Part


class Kept:
    """How variables lay before a piece of work, with the values that they had; these are held, not copied."""

    def __init__(self, back: list[Callable[[], None]]):
        """Args: back: for each variable, what lets it lie so again."""
        self.back = back

    def put_back(self) -> None:
        """Let all lie so again: the work is undone."""
        for back in self.back:
            back()


class Parts:
    """The variables of the run that have lain in parts, in the order in which they were put so, alike on every rank.

    Attributes:
        ask: tells the other ranks, which wait, that this one reads a variable, or makes it whole; None: they do it too.
        early: whether an optimizer makes its slots, each to be put in parts at once. It asks where weights are, and
            does not make them whole by that.
    """

    def __init__(self) -> None:
        self.every: list[weakref.ref[Part]] = []  # what the script has done with is gone
        self.ask: Callable[[int, bool], None] | None = None
        self.early = False
        self._kept: weakref.ref[Kept] | None = None
        self._layouts: list[Layout] = []  # the last one is that of the ranks that there are

    def layout(self) -> Layout:
        """Who has which part of a variable that is put in parts now."""
        ranks = world.of_job()
        if not self._layouts and ranks.guard is not None:
            ranks.guard.on_change.append(self._leave)
        if not self._layouts or not self._layouts[-1].is_of(ranks):
            self._layouts.append(Layout(ranks, settings.current().shard_copies if ranks.guard is not None else 0))
        return self._layouts[-1]

    def kept(self) -> Kept:
        """How all variables lie now, and those that are put in parts as long as this is held."""
        kept = Kept([part.kept() for held in self.every if (part := held()) is not None])
        self._kept = weakref.ref(kept)
        return kept

    def numbered(self, part: Part, number: int) -> int:
        """The number of a `part` that is whole, and is put in parts now. `number` is that which it had; -1 for none."""
        if 0 <= number < len(self.every) and self.every[number]() is part:
            return number
        self.every.append(weakref.ref(part))
        if self._kept is not None and (kept := self._kept()) is not None:
            kept.back.append(part.kept())
        return len(self.every) - 1

    def join(self) -> None:
        """Have all whole that lie in parts, before ranks come. All ranks come here."""
        here = {number: part for number, held in enumerate(self.every) if (part := held()) is not None}
        known = world.of_job().allgather([n for n, part in here.items() if part.is_split], "see what lies in parts")
        for number in sorted(set.intersection(*map(set, known))):  # what a rank has done with nobody reads
            here[number].take_part(whole=True)
        self.every.clear()  # ranks that come have had others; from now on all have the same

    def copied(self, handles: Container[int]) -> None:
        """Give other ranks copies of the parts that a step has changed. All ranks come here.

        Args:
            handles: ids of the handles of the variables that it may change.
        """
        parts = [part for held in self.every if (part := held()) is not None and part.is_split]
        parts = [part for part in parts if id(part.own.handle) in handles]
        ranks, layout = world.of_job(), self.layout()
        if not parts or not layout.to:
            return
        mine = np.concatenate([part.array().view(np.uint8) for part in parts])
        copies: list[list[np.ndarray]] = [[] for _ in parts]
        for to, source in zip(layout.to, layout.held[1:], strict=True):
            lengths = [part.bytes_of(source) for part in parts]
            theirs = np.empty(sum(lengths), np.uint8)
            ranks.swap(mine, to, theirs, source, "copy the parts of variables")
            for part, own, piece in zip(parts, copies, np.split(theirs, np.cumsum(lengths)[:-1]), strict=True):
                own.append(piece.view(part.array_dtype))
        for part, own in zip(parts, copies, strict=True):
            part.copies = own

    def _leave(self, survivors: Sequence[int]) -> None:
        for layout in self._layouts:
            layout.leave(survivors)


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question: gather a variable, by its number; whether it stays whole."""

    number: int
    whole: bool


@contextlib.contextmanager
def asking(tell: Callable[[Asked], Any]) -> Iterator[None]:
    """Inside of this block this rank alone reads. Args: tell: sends a question to the others."""
    parts = run_state.current().part(Parts)
    parts.ask = lambda number, whole: tell(Asked(number, whole))
    try:
        yield
    finally:
        parts.ask = None


def answered(said: Any, listen: Callable[[], Any]) -> Any:
    """What the rank that reads has said last, after all of its questions.

    Args:
        said: what it has said first; listen: waits for the next.
    """
    every = run_state.current().part(Parts).every
    while isinstance(said, Asked):
        part = every[said.number]() if said.number < len(every) else None
        with contextlib.suppress(RanksDisagree):  # where another is meant; the rank that reads has the error too
            if part is None:
                world.of_job().barrier(f"gather variable {said.number} in parts, which this rank does not have")
            else:
                part.take_part(said.whole)
        said = listen()
    return said
