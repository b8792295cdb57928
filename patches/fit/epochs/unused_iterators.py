"""Keras makes an iterator at the end of each epoch that nobody uses, since it begins the next epoch with another one.

To make one over a pipeline takes some three milliseconds for each of its functions, longer than a small step. All that
the unused one may do is to draw the order of a `shuffle`. So only what draws is made, without the maps behind it.

Relies on (Keras 3.6 to 3.15, private; done without where they are gone): `EpochIterator._enumerate_iterator`,
`_get_iterator` and `_current_iterator`.
"""

from __future__ import annotations

from typing import Any

from matex_tf.patches.sources import calls
from matex_tf.patches.sources.pipeline_ownership import inputs_of, unwrapped

#: Parts of the names of datasets that may draw, or write, where an iterator is made.
_DRAWING = ("Random", "Shuffle", "Sampl", "Snapshot", "Save", "Sql")


class _NotNeeded:
    """Stands for an iterator that nobody uses."""

    def __iter__(self) -> _NotNeeded:
        return self

    def __next__(self) -> Any:
        raise StopIteration


def leave_out(iterator: Any) -> None:
    """Let an epoch iterator of Keras make one iterator an epoch."""
    if not all(hasattr(iterator, name) for name in ("_enumerate_iterator", "_get_iterator", "_current_iterator")):
        return
    enumerate_epoch, get = iterator._enumerate_iterator, iterator._get_iterator
    given = 0  # in this epoch
    drawing = what_draws(iterator._distributed_dataset)

    def begin() -> Any:
        nonlocal given
        given = 0
        if isinstance(iterator._current_iterator, _NotNeeded):
            iterator._current_iterator = None
        return enumerate_epoch()

    def next_one() -> Any:
        nonlocal given
        given += 1
        if given == 1 or iterator.steps_per_epoch:  # with a number of steps the next epoch goes on with this one
            return get()
        if drawing is not None:
            iter(drawing)
        return _NotNeeded()

    iterator._enumerate_iterator, iterator._get_iterator = begin, next_one


def what_draws(dataset: Any) -> Any:
    """The front of a pipeline, up to the last dataset that may draw where an iterator is made; None if none may.

    What draws before a cache draws until that has all elements, so the front has the cache too.
    """
    one = unwrapped(dataset)
    inputs = inputs_of(one)
    if any(part in type(one).__name__ for part in _DRAWING) or not (inputs or _holds_rows(one)):
        return one
    fronts = [front for front in map(what_draws, inputs) if front is not None]
    if not fronts:
        return None
    stays = len(inputs) > 1 or calls.kind(one) == "repeat" or "Cache" in type(one).__name__
    return one if stays else fronts[0]


def _holds_rows(dataset: Any) -> bool:
    return hasattr(dataset, "_tensors") or calls.kind(dataset) in ("from_tensors", "range")
