"""Whether a piece of work is under way: patches ask it of the code that called them."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Iterator

from matex_tf.state import run_state


class _Depths(collections.Counter[str]):
    """Of a run: by the name of a flag, the blocks that are under way."""


@dataclasses.dataclass(frozen=True)
class ActiveFlag:
    """True while a block of `with this():` runs, in any thread; blocks may be nested.

    Attributes:
        name: of the piece of work; no other flag has it.
    """

    name: str

    def __bool__(self) -> bool:
        return run_state.part(_Depths)[self.name] > 0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Be inside."""
        depths = run_state.part(_Depths)
        depths[self.name] += 1
        try:
            yield
        finally:
            depths[self.name] -= 1


#: While this rank writes by itself, whatever the others do.
alone = ActiveFlag("alone")


class Layers:
    """What the run has of private layers.

    Attributes:
        on: whether each rank has one: what one rank writes no other one waits for, or sees.
        refresh: lets this rank see what the first one has written since.
    """

    on = False

    @staticmethod
    def refresh() -> None:
        """Nothing, on the first rank."""


def layers() -> Layers:
    """The layers of the run."""
    return run_state.current().part(Layers)


def each_writes() -> bool:
    """Whether this rank writes by itself: for now, or all the time, into a layer of its own."""
    return bool(alone) or layers().on
