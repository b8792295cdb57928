"""Threads that make the batches of a `Sequence` of Keras 2 (`workers` above 1) make as many as an epoch takes.

Keras begins the next pass, with `on_epoch_end` and a new order, a tenth of a second after the last batch was taken, if
the epoch has not ended by then: as time will have it, and so differently on each rank. Here a pass begins where a batch
of it is asked for.

Relies on (tf_keras 2.16 to 2.21): `OrderedEnqueuer.get`, public; its `sequence`, `stop_signal` and `_wait_queue`,
private.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from matex_tf.patches.common import wrapping
from matex_tf.state import notes


class _Steps:
    """Of a sequence: how many batches an epoch takes, the most of those that are known; 0 if none is."""

    most = 0


class _Waiting:
    """Of an enqueuer: whether somebody waits for the next batch."""

    asked = True


def install(module: ModuleType) -> None:
    """Patch tf_keras.src.utils.data_utils."""
    wrapping.method(module, "OrderedEnqueuer.get", _get)
    wrapping.method(module, "OrderedEnqueuer._wait_queue", _wait)


def takes(sequence: Any, count: int | None) -> None:
    """Take note that an epoch takes so many batches, `count`, of a `sequence`; None where nobody knows."""
    known = notes.of(sequence, _Steps)
    known.most = max(known.most, count or 0)


def _get(wrapped: Any, enqueuer: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    batches, most, waiting = (
        wrapped(*args, **kwargs),
        notes.of(enqueuer.sequence, _Steps).most,
        notes.of(enqueuer, _Waiting),
    )
    for _ in itertools.repeat(None, most) if most else itertools.repeat(None):
        waiting.asked = True
        try:
            batch = next(batches)
        except StopIteration:
            return
        waiting.asked = False
        yield batch


def _wait(wrapped: Any, enqueuer: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    waiting = notes.of(enqueuer, _Waiting)
    while not waiting.asked and not enqueuer.stop_signal.wait(0.005):
        pass
