"""What it takes to make batches that every rank makes: seconds of an epoch, for a line with the price."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from matex_tf.patches.sources.reasons import Why


class Price:
    """Of one data set: a note on the pipeline of Keras, and on the adapter that makes it.

    Attributes:
        why: why every rank makes its batches.
        seconds: spent on that since `begin`.
    """

    def __init__(self, why: Why):
        self.why, self.seconds = why, 0.0

    def begin(self) -> None:
        """An epoch begins."""
        self.seconds = 0.0

    def timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        """These batches, while this takes note of what they take."""
        while True:
            begin = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self.seconds += time.perf_counter() - begin
            yield batch
