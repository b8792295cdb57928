"""While one rank writes a file and the others wait, what it reads of variables in parts they gather with it.

The others wait for the word that the file is written. Instead of it a question may come: which variable to gather.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from matex_tf.patches.common import run_state
from matex_tf.patches.shards.variable import Parts


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
    while isinstance(said, Asked):
        part = run_state.current().part(Parts).every[said.number]()
        assert part is not None  # the script is the same on every rank, and one has the variable
        part.take_part(said.whole)
        said = listen()
    return said
