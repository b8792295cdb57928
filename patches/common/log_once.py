"""The lines that start with `matex_tf:`; rank 0 says each of them once."""

from __future__ import annotations

import os
import sys

from matex_tf import settings
from matex_tf.core import world
from matex_tf.state import run_state

#: Why data differ between ranks that should have the same.
LIKELY = (
    "look for a shuffle or a generator without a seed, a seed from the clock, os.urandom or uuid, or files in the "
    "order of os.listdir or glob, which is another on each host: sort them"
)


class Said(set[str]):
    """Of a run: the lines that were said, on any rank."""


def log(text: str, more: str = "") -> None:
    """Print a line on rank 0, to standard error, the first time only.

    Args:
        text: the line, in words. more: its end; lines that differ only in that count as one.
    """
    said = run_state.part(Said)
    if text not in said:
        said.add(text)
        if world.of_job().rank == 0 and settings.current().notes:
            _print(f"matex_tf: {text}{more}")


def _print(line: str) -> None:
    """To standard error itself where it is a file: trackers take down what a script prints, and this is not its own."""
    try:
        number = sys.stderr.fileno()
    except (AttributeError, OSError):  # in memory, or there is none
        print(line, file=sys.stderr, flush=True)
        return
    sys.stderr.flush()
    os.write(number, f"{line}\n".encode(errors="replace"))
