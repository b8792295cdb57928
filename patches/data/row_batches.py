"""A rank's rows of each batch of arrays, gathered while the batch before them is computed.

What Keras walks over in place of a tf.data pipeline. To make an iterator of that costs some three milliseconds for each
of its functions, each time an epoch begins, as TensorFlow makes their kernels anew. So only the order of the rows comes
from a pipeline; an epoch for which that would give the same order again takes the one it had.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data.local_batch import LocalBatch

#: The bytes of a batch from which on another thread gathers it.
_MUCH = 1 << 16

#: Of a batch: which rows this rank gathers, their share, and `LocalBatch.batch`.
Own = tuple[np.ndarray, RowRange, np.ndarray]
#: What this rank takes of each batch of an epoch, which begins with the call.
Order = Callable[[], Iterator[Own]]


class RowBatches:
    """The batches of an epoch, any number of times.

    Attributes:
        element_spec: a `LocalBatch` of tf.TensorSpecs.
    """

    def __init__(
        self,
        order: Order,
        rows: Any,
        origin: list[int],
        whole: bool,
        repeats: bool,
    ):
        """Args:
        order: of an epoch.
        rows: the arrays: a `Gatherer`, or what gives rows as that does; of none ahead if its `row_bytes` are 0.
        origin: where a batch comes from, see `LocalBatch`.
        whole: whether every rank holds all rows.
        repeats: whether all epochs have the same order.
        """
        self._order, self._rows, self._repeats = order, rows, repeats
        self._known: list[Own] | None = None
        self._origin, self._whole, self._nothing = (
            _on_cpu(one, dtype) for one, dtype in ((origin, tf.int64), (whole, tf.bool), ([], tf.int64))
        )
        self._share = functools.lru_cache(maxsize=8)(lambda share: _on_cpu(share, tf.int32))  # most are the same
        self.element_spec = LocalBatch.spec(rows.spec)

    def __iter__(self) -> RowIterator:
        return RowIterator(self)

    def epoch(self) -> Iterator[Own]:
        """What this rank takes of each batch of the next epoch."""
        if self._known is not None:
            yield from self._known
            return
        found = []
        for own in self._order():
            if self._repeats:
                found.append(own)
            yield own
        if self._repeats:
            self._known = found

    def gather(self, own: Own) -> LocalBatch:
        """The rows of a batch, as tensors on the CPU."""
        indices, share, batch = own
        after = _on_cpu(batch, tf.int64) if len(batch) else self._nothing
        return LocalBatch(self._share(share), self._whole, self._rows.take(indices), self._origin, after)

    def is_much(self, own: Own) -> bool:
        """Whether to gather a batch takes longer than to wake a thread."""
        return len(own[0]) * self._rows.row_bytes > _MUCH


class RowIterator:
    """Walks over the batches of an epoch; the next one is gathered meanwhile."""

    def __init__(self, batches: RowBatches):
        self._dataset = batches  # as tf.data's iterators name it
        self.element_spec = batches.element_spec
        self._epoch: Iterator[Own] | None = None
        self._next: collections.deque[Own | Future[LocalBatch]] = collections.deque()
        self._thread: ThreadPoolExecutor | None = None

    def __iter__(self) -> RowIterator:
        return self

    def __next__(self) -> LocalBatch:
        if self._epoch is None:
            self._epoch = self._dataset.epoch()
            self._begin_next()
        if not self._next:
            raise StopIteration
        found = self._next.popleft()
        batch = found.result() if isinstance(found, Future) else self._dataset.gather(found)
        self._begin_next()
        return batch

    def _begin_next(self) -> None:
        assert self._epoch is not None
        own = next(self._epoch, None)
        if own is None:
            self._thread = None  # ends when it has nothing to do
        elif not self._dataset.is_much(own):
            self._next.append(own)
        else:
            self._thread = self._thread or ThreadPoolExecutor(1, "matex_tf rows")
            self._next.append(self._thread.submit(self._dataset.gather, own))


def _on_cpu(value: Any, dtype: tf.DType) -> tf.Tensor:
    with tf.device("CPU:0"):
        return tf.constant(value, dtype)


def as_tf_data(batches: RowBatches) -> Any:
    """A tf.data pipeline of these batches, for what wants one."""
    return tf.data.Dataset.from_generator(batches.__iter__, output_signature=batches.element_spec)
