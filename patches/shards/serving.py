"""While one rank writes a file and the others wait, what it reads of variables in parts they gather with it.

The others wait for the word that the file is written. Instead of it a question may come: which variable to gather.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from matex_tf.core import world
from matex_tf.errors import RanksDisagree
from matex_tf.patches.common import run_state

if TYPE_CHECKING:
    from matex_tf.patches.shards.variable import Part


class Parts:
    """The variables of the run that may lie in parts, in the order in which they were chosen, alike on every rank.

    Attributes:
        ask: tells the other ranks, which wait, that this one reads a variable, or makes it whole; None: they do it too.
    """

    def __init__(self) -> None:
        self.every: list[weakref.ref[Part]] = []  # what the script has done with is gone
        self.ask: Callable[[int, bool], None] | None = None


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
