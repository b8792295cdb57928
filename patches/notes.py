"""The lines that start with `matex_tf:`; rank 0 says each of them once."""

from __future__ import annotations

import sys

from matex_tf import settings, world

_said: set[str] = set()


def say(text: str) -> None:
    """Print a line on rank 0, to standard error, the first time only."""
    if text not in _said:
        _said.add(text)
        if world.current().rank == 0 and settings.current().notes:
            print(f"matex_tf: {text}", file=sys.stderr, flush=True)
