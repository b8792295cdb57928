"""What a batch of arrays came from, by a number: a tf.data pipeline hands on tensors alone."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from matex_tf.state import notes, run_state


class _Numbers:
    """Of a run: how many numbers were given."""

    given = 0


class _Number(int):
    """Of what batches come from."""


def remember(origin: Any) -> int:
    """A number for what batches come from, for as long as someone holds it: 1 or more."""
    return notes.of(origin, _Number, _next)


def _next() -> _Number:
    numbers = run_state.part(_Numbers)
    numbers.given += 1
    return _Number(numbers.given)


def find(number: int) -> Any:
    """What has this number; None where nothing has it any more, and for 0."""
    return next((one for one in notes.having(_Number) if notes.found(one, _Number) == number), None)


class PassedRows(abc.ABC):
    """Rows that go from rank to rank while these train, as a strategy has it."""

    @abc.abstractmethod
    def before_batch(self) -> None:
        """Before a batch is taken: the rows that travel arrive; at the end of an epoch its last rows as well."""

    @abc.abstractmethod
    def after_batch(self, batch: np.ndarray) -> None:
        """After that: the rows of the batch before, which has been trained on, begin to travel.

        Args:
            batch: `LocalBatch.batch` of the one that was taken: whether it is the last of an epoch, and the places of
                the rows that shall be passed on; of the same length on every rank.
        """

    @abc.abstractmethod
    def rest(self) -> None:
        """All rows arrive."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give the communicator back; after `rest`."""


def passed(origin: Any) -> PassedRows | None:
    """What passes on the rows of a batch, by the `origin` of its `local_batch.LocalBatch`; None if they stay."""
    found = find(int(origin.numpy()[0]))
    return found if isinstance(found, PassedRows) else None
