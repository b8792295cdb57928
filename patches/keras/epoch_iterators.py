"""Keras makes an iterator at the end of each epoch that nobody uses, since it begins the next epoch with another one.

To make one over a pipeline takes some ten milliseconds, as long as several small steps. It is left out for arrays, of
which an iterator draws nothing before its first batch.

Relies on (Keras 3.6 to 3.15, private; done without where they are gone): `EpochIterator._enumerate_iterator`,
`_get_iterator` and `_current_iterator`.
"""

from __future__ import annotations

from typing import Any


class _NotNeeded:
    """Stands for an iterator that nobody uses."""

    def __iter__(self) -> _NotNeeded:
        return self

    def __next__(self) -> Any:
        raise StopIteration


def leave_out(iterator: Any) -> None:
    """Let an epoch iterator of Keras over arrays make one iterator an epoch."""
    if not all(hasattr(iterator, name) for name in ("_enumerate_iterator", "_get_iterator", "_current_iterator")):
        return
    enumerate_epoch, get = iterator._enumerate_iterator, iterator._get_iterator
    given = 0  # in this epoch

    def begin() -> Any:
        nonlocal given
        given = 0
        if isinstance(iterator._current_iterator, _NotNeeded):
            iterator._current_iterator = None
        return enumerate_epoch()

    def next_one() -> Any:
        nonlocal given
        given += 1
        # With a number of steps the next epoch goes on with this one.
        return get() if given == 1 or iterator.steps_per_epoch else _NotNeeded()

    iterator._enumerate_iterator, iterator._get_iterator = begin, next_one
