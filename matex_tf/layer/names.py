"""Names that Python draws: the same on every rank, so that each makes the file that one process would make.

Or a later rank would find the first one's beside its own, once that is in its place. Names of the clock and of a
process stay a rank's own.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import threading
import uuid
from collections.abc import Iterator
from typing import Any


def draw_alike(seed: int) -> None:
    """From now on draw the same UUIDs and names of temporary files as ranks with the same seed.

    Other threads, and processes that are forked, draw their own.
    """
    drawn, process, uuid4 = random.Random(seed), os.getpid(), uuid.uuid4

    def of_all_ranks() -> uuid.UUID:
        if threading.current_thread() is not threading.main_thread() or os.getpid() != process:
            return uuid4()
        return uuid.UUID(int=drawn.getrandbits(128), version=4)

    uuid.uuid4 = of_all_ranks
    names: Any = tempfile._RandomNameSequence()  # type: ignore[attr-defined]
    names._rng, names._rng_pid = random.Random(seed), process
    tempfile._name_sequence = names  # type: ignore[attr-defined]


@contextlib.contextmanager
def drawn_apart() -> Iterator[None]:
    """What is drawn inside is not drawn by other ranks, and does not change what comes next."""
    common = tempfile._name_sequence  # type: ignore[attr-defined]
    tempfile._name_sequence = tempfile._RandomNameSequence()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        tempfile._name_sequence = common  # type: ignore[attr-defined]
