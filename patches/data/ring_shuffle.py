"""The ring of samples of GossipGraD (arXiv 1803.05880): rows that a rank has trained on go to the next rank.

A rank holds rows of its own. While it computes a step the rows of the step before travel: to the next rank, which puts
them where the rows were that it has sent away itself. So each row is on one rank at any time, what a rank holds stays
as large as it was, and as those places have had their turn in this epoch, each row is still used once an epoch. Where
ranks have different numbers of rows in a batch, each passes on as many as the rank with the fewest has.

At the end of an epoch, and of a fit, the last rows arrive before anything else is done.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings, strategies
from matex_tf.core import trace, world
from matex_tf.core.waiting import StallDetector
from matex_tf.exchange.network.messenger import Messenger, Transfer, swap
from matex_tf.patches.common import log_once
from matex_tf.patches.data import batch_origins
from matex_tf.patches.steps.row_choice import RowChoice


class Ring:
    """The rows that this rank holds now.

    Attributes:
        columns: arrays of the rows, each (rows, …); a copy of what the script gave, which stays as it is.
        passed: rows that were sent so far.
        number: see `batch_origins`.
    """

    def __init__(self, elements: Any):
        """Args: elements: arrays or tensors, nested as Keras has them. Collective."""
        ranks, chosen = world.current(), settings.current()
        self._structure = elements
        self.columns = [np.array(leaf) for leaf in tf.nest.flatten(elements) if leaf is not None]
        self.passed = 0
        self.number = batch_origins.remember(self)
        self._messenger = Messenger(ranks.split_all())
        self._to, self._source = (ranks.rank + 1) % ranks.size, (ranks.rank - 1) % ranks.size
        self._stalls = StallDetector(chosen.stall_seconds, chosen.stall_abort_seconds, ranks.log)
        self._used: np.ndarray | None = None  # places of the rows that are to be sent next
        self._epoch_ends = False
        self._under_way: tuple[Transfer, np.ndarray, np.ndarray] | None = None  # its places, what is received

    def take(self, places: tf.Tensor) -> Any:
        """Rows in these places, as they are when the op runs; for a tf.data pipeline without prefetching."""
        dtypes = [tf.as_dtype(column.dtype) for column in self.columns]
        taken = tf.numpy_function(lambda at: [column[at] for column in self.columns], [places], dtypes, stateful=True)
        for rows, column in zip(taken, self.columns, strict=True):
            rows.set_shape([None, *column.shape[1:]])
        taken_of = iter(taken)
        return tf.nest.map_structure(lambda leaf: None if leaf is None else next(taken_of), self._structure)

    def before_batch(self) -> None:
        """Before a batch is taken: the rows that travel arrive; at the end of an epoch its last rows as well."""
        self._arrive()
        if self._epoch_ends:
            self.rest()

    def after_batch(self, batch: np.ndarray) -> None:
        """After that: the rows of the batch before, which has been trained on, begin to travel.

        Args:
            batch: `LocalBatch.batch` of the one that was taken: whether it is the last of an epoch, and the places of
                the rows that shall be passed on; of the same length on every rank.
        """
        self._send()
        self._epoch_ends, self._used = bool(batch[0]), batch[1:]

    def rest(self) -> None:
        """All rows arrive."""
        self._arrive()
        self._send()
        self._arrive()
        self._epoch_ends = False

    def close(self) -> None:
        """Give the communicator back; after `rest`."""
        self._messenger.close()

    def _send(self) -> None:
        places, self._used = self._used, None
        if places is None or not len(places):
            return
        with trace.span("pack", "rows"):
            mine = np.concatenate([np.ascontiguousarray(c[places]).reshape(-1).view(np.uint8) for c in self.columns])
        theirs = np.empty_like(mine)
        transfer = self._messenger.post(swap(self._messenger.lane, mine, theirs, self._to, self._source, 0))
        self._under_way = transfer, places, theirs
        self.passed += len(places)

    def _arrive(self) -> None:
        if self._under_way is None:
            return
        transfer, places, theirs = self._under_way
        with trace.span("wait", "rows"):
            partners = sorted({self._source, self._to})
            transfer.wait(lambda seconds: self._stalls.check(partners, seconds, "gossip"))
        begin = 0
        for column in self.columns:
            size = len(places) * column[:1].nbytes
            column[places] = theirs[begin : begin + size].view(column.dtype).reshape(len(places), *column.shape[1:])
            begin += size
        self._under_way = None


def wanted(elements: Any, sharded: bool, chosen: RowChoice | None = None) -> bool:
    """Whether rows shall go round among the ranks in this training; the same on every rank."""
    if not strategies.current().passes_rows(sharded):
        return False
    if any(tf.as_dtype(leaf.dtype) == tf.string for leaf in tf.nest.flatten(elements) if leaf is not None):
        log_once.log("rows hold text, and stay on their ranks: --ring-shuffle passes on numbers")
        return False
    if chosen is not None:
        log_once.log(f"rows stay on their ranks: with {chosen.asked} each has its number")
        return False
    if world.current().guard is not None:
        log_once.log("rows stay on their ranks: with --faults shrink those that travel would be lost with a rank")
        return False
    return True


def of(origin: Any) -> Ring | None:
    """The ring that a batch came from, by the `origin` of its `local_batch.LocalBatch`; None where it is none."""
    found = batch_origins.find(int(origin.numpy()[0]))
    return found if isinstance(found, Ring) else None
