"""What the compiled steps of a script's own loops have returned, by call: a rank that comes runs the script with it.

What is returned is held as it is, and a few hundred calls later put together to arrays: there may be millions.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

#: Bytes of what is kept, at the most; more of it is of no use to anybody, and nothing is.
MOST_BYTES = 64 << 20
#: What a call takes besides its tensors, about; and the calls after which they are put together.
_CALL_BYTES, _TOGETHER = 16, 256


class Chunk(NamedTuple):
    """Some calls of one step, one after the other.

    Attributes:
        step: the number of the step.
        calls: how many there are.
        outputs: for each tensor that a call gives, that of all calls, of (calls, …).
    """

    step: int
    calls: int
    outputs: list[np.ndarray]


class CallLog:
    """What was returned.

    Attributes:
        count: calls that it has, or has had.
        why_not: why it has them no more, in words; else empty.
    """

    def __init__(self) -> None:
        self.count, self.why_not = 0, ""
        self._chunks: list[Chunk] = []
        self._ends: list[int] = []  # of each chunk, the number of the call behind it
        self._pending: list[tuple[int, list[Any]]] = []
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, step: int, outputs: Sequence[Any]) -> None:
        """Note a call. Args: step: its number. outputs: eager tensors."""
        self.count += 1
        if self.why_not:
            return
        self._bytes += _CALL_BYTES
        for tensor in outputs:
            if (
                not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool)
                or tensor.dtype == tf.bfloat16
                or isinstance(tensor, tf.Variable)
            ):
                self.why_not = f"a step returns, or the script reads, values of {tensor.dtype.name}"
            else:
                self._bytes += (tensor.shape.num_elements() or 0) * tensor.dtype.size
        if self._bytes > MOST_BYTES:
            self.why_not = f"its steps have returned, and its script has read, more than {MOST_BYTES >> 20} MB"
        with self._lock:
            if self.why_not:
                self._chunks.clear()
                self._ends.clear()
                self._pending.clear()
                return
            self._pending.append((step, list(outputs)))
            if len(self._pending) >= _TOGETHER:
                self._put_together()

    def _put_together(self) -> None:
        def kind(call: tuple[int, list[Any]]) -> Any:
            return call[0], [(tensor.dtype, tensor.shape.as_list()) for tensor in call[1]]

        pending, self._pending = self._pending, []
        while pending:
            alike = next((at for at, call in enumerate(pending) if kind(call) != kind(pending[0])), len(pending))
            some, pending = pending[:alike], pending[alike:]
            self._append(
                Chunk(some[0][0], len(some), [np.stack(one) for one in zip(*(call[1] for call in some), strict=True)])
            )

    def _append(self, chunk: Chunk) -> None:
        self._ends.append((self._ends[-1] if self._ends else 0) + chunk.calls)
        self._chunks.append(chunk)

    def since(self, call: int) -> list[tuple[Any, ...]]:
        """The chunks of all calls from one on, as plain values; in any thread."""
        with self._lock:
            self._put_together()
            found = []
            for chunk, end in zip(self._chunks, self._ends, strict=True):
                left_out = max(0, call - (end - chunk.calls))
                if end > call:
                    found.append((chunk.step, chunk.calls - left_out, [one[left_out:] for one in chunk.outputs]))
            return found

    def extend(self, chunks: Sequence[tuple[Any, ...]]) -> None:
        """Take what `since` gave for `count`."""
        with self._lock:
            self._put_together()
            for step, calls, outputs in chunks:
                self._append(Chunk(step, calls, outputs))
                self.count += calls

    def call(self, number: int) -> tuple[int, list[np.ndarray]]:
        """The number of the step of a call, and what that gave."""
        with self._lock:
            self._put_together()
            place = bisect.bisect_right(self._ends, number)
            chunk = self._chunks[place]
            at = number - (self._ends[place] - chunk.calls)
            return chunk.step, [one[at] for one in chunk.outputs]
