"""A timeline of the run, one track a rank, to open in a trace viewer. Off, a span costs a call and nothing else."""

from __future__ import annotations

import contextlib
from typing import Any

_nothing = contextlib.nullcontext()


def span(name: str, what: str = "") -> Any:
    """A `with` block that stands in the timeline."""
    return _nothing
