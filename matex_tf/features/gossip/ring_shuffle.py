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

from matex_tf import settings
from matex_tf.core import trace, world
from matex_tf.core.row_partition import span
from matex_tf.core.waiting import StallDetector
from matex_tf.errors import MatexError
from matex_tf.exchange.network.messenger import Messenger, Transfer, swap
from matex_tf.patches.common import log_once, row_slicing
from matex_tf.patches.data import batch_indices, local_batch
from matex_tf.patches.data.array_sharding import DataLayout
from matex_tf.patches.data.local_batch import PassedRows
from matex_tf.patches.data.row_batches import RowBatches
from matex_tf.patches.steps.row_choice import RowChoice
from matex_tf.state import notes


class Ring(PassedRows):
    """The rows that this rank holds now.

    Attributes:
        columns: arrays of the rows, each (rows, …); a copy of what the script gave, which stays as it is.
        passed: rows that were sent so far.
        spec, row_bytes: see `Gatherer`; nothing is taken ahead, since what is in a place changes from batch to batch.
        number: see `local_batch.remember`.
    """

    def __init__(self, elements: Any):
        """Args: elements: arrays or tensors, nested as Keras has them. Collective."""
        ranks, chosen = world.current(), settings.current()
        self._structure = elements
        self.columns = [np.array(leaf) for leaf in tf.nest.flatten(elements) if leaf is not None]
        self.passed = self.row_bytes = 0
        self.spec = tf.nest.map_structure(row_slicing.any_rows, elements)
        self.number = local_batch.remember(self)
        self._messenger = Messenger(ranks.split_all())
        self._to, self._source = (ranks.rank + 1) % ranks.size, (ranks.rank - 1) % ranks.size
        self._stalls = StallDetector(chosen.stall_seconds, chosen.stall_abort_seconds, ranks.log)
        self._used: np.ndarray | None = None  # places of the rows that are to be sent next
        self._epoch_ends = False
        self._under_way: tuple[Transfer, np.ndarray, np.ndarray] | None = None  # its places, what is received

    def take(self, places: np.ndarray) -> Any:
        """Rows in these places, as they are now."""
        with tf.device("CPU:0"):
            taken = iter([tf.constant(column[places]) for column in self.columns])
        return tf.nest.map_structure(lambda leaf: None if leaf is None else next(taken), self._structure)

    def before_batch(self) -> None:
        self._arrive()
        if self._epoch_ends:
            self.rest()

    def after_batch(self, batch: np.ndarray) -> None:
        self._send()
        self._epoch_ends, self._used = bool(batch[0]), batch[1:]

    def rest(self) -> None:
        self._arrive()
        self._send()
        self._arrive()
        self._epoch_ends = False

    def close(self) -> None:
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


def obstacle(elements: Any, chosen: RowChoice | None) -> bool:
    """Whether something keeps rows where they are, which is said; the same on every rank.

    Args:
        elements: arrays or tensors, nested as Keras has them.
        chosen: which rows an epoch uses, where it leaves some out; None where it uses all.
    """
    if any(tf.as_dtype(leaf.dtype) == tf.string for leaf in tf.nest.flatten(elements) if leaf is not None):
        log_once.log("rows have text, and stay on their ranks: --ring-shuffle passes on numbers only")
    elif chosen is not None:
        log_once.log(f"rows stay on their ranks, since {chosen.asked} numbers them: leave out one of the two")
    elif world.current().guard is not None:
        log_once.log("rows stay on their ranks, since --faults shrink could not replace those that a dead rank has got")
    else:
        return False
    return True


def pipeline(adapter: Any, elements: Any, holding: DataLayout, global_size: int) -> RowBatches:
    """Batches of rows that ranks pass on to one another; of what every rank holds, each takes a part first. Collective.

    Args:
        adapter: Keras' adapter of the arrays, which keeps the ring.
        elements: arrays or tensors, nested as Keras has them.
        holding: what the ranks hold of them.
        global_size: rows of a step of all ranks.

    Raises:
        MatexError: there are fewer rows than ranks.
    """
    ranks = world.current()
    if holding.total < ranks.size:
        raise MatexError(
            f"there are more ranks ({ranks.size}) than rows to train on ({holding.total}), and rows cannot go round: "
            "start fewer ranks, or take --ring-shuffle off."
        )
    counts = holding.counts
    if not holding.sharded:
        parts = [span(holding.total, rank, ranks.size) for rank in range(ranks.size)]
        counts = [high - low for low, high in parts]
        low, high = parts[ranks.rank]
        elements = tf.nest.map_structure(lambda leaf: None if leaf is None else leaf[low:high], elements)
    notes.keep(adapter, held := Ring(elements))  # as long as the data are walked over
    order = batch_indices.of_shards(adapter, counts, global_size, goes_round=True)
    return RowBatches(order, held, [held.number, ranks.generation], False, repeats=False)
