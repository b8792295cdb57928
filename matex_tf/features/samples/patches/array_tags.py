"""Tags of arrays: which rows each batch of an epoch takes, without those that it leaves out.

Relies on (Keras 3.3 to 3.15, private): `ArrayDataAdapter._shuffle`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from matex_tf.core import world
from matex_tf.core.row_partition import Interleaving
from matex_tf.features.samples import scoring
from matex_tf.patches.data import batch_indices
from matex_tf.patches.data.epoch_orders import ShardOrders
from matex_tf.patches.data.row_batches import Order, Own

if TYPE_CHECKING:
    from matex_tf.features.samples.patches.pruning import Pruning


def of_whole(
    adapter: Any, numbers: Callable[[], Any], pruning: Pruning, size: int
) -> Callable[[], Iterator[np.ndarray]]:
    """Begins an epoch: the tags of its batches, without the rows that it leaves out, each full again.

    Args:
        adapter: Keras' adapter of the arrays; says how rows are shuffled.
        numbers: makes a pipeline of the numbers of all rows, in batches, in the order of an epoch.
        pruning: which rows the epoch uses.
        size: rows of a batch.

    Returns:
        What gives int64 (rows,) for each batch of an epoch.
    """
    shuffle = bool(adapter._shuffle)
    if pruning.rate and adapter._shuffle != "batch":
        return lambda: batch_indices.in_batches(pruning.tags(shuffle), size)
    pipeline = numbers()

    def epoch() -> Iterator[np.ndarray]:
        rows = np.concatenate([np.asarray(indices) for (indices,) in pipeline])
        return batch_indices.in_batches(used(rows, pruning.codes()), size)

    return epoch


def of_shards(adapter: Any, counts: list[int], global_size: int, pruning: Pruning) -> Order:
    """Tags and share of this rank in each batch, of rows that only this rank holds; see `batch_indices.of_shards`."""
    rank = world.current().rank
    starts, orders = np.concatenate([[0], np.cumsum(counts)]), ShardOrders(counts, adapter._shuffle)

    def order() -> Iterator[Own]:
        codes, epoch = pruning.codes(), orders.next_epoch()
        left = [int((codes[low:high] != 0).sum()) for low, high in zip(starts[:-1], starts[1:], strict=True)]
        numbers = pruning.offset + orders.of(rank, epoch)[: counts[rank]]
        tags = used(numbers, codes) if left[rank] else np.array([pruning.offset])
        for number, span in enumerate(batch_indices.spans(Interleaving(left), global_size, rank)):
            taken, share = batch_indices.slice_of(tags, *span[:4])
            if adapter._shuffle == "batch":
                taken = orders.drawn(rank, epoch, number).permutation(taken)
            yield taken, share, tags[:0]

    return order


def used(numbers: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The tags of those rows that are used in an epoch.

    Args:
        numbers: int64 (n,), rows.
        codes: int8 (rows,), see `scoring.Epoch`.
    """
    code = codes[numbers]
    tags = np.where(code == scoring.SCALED, -1 - numbers, numbers)
    return tags[code != scoring.LEFT_OUT]
