"""What a group that joins a job has to have in common with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from matex_tf.settings import Settings
from matex_tf.settings.declaration import flag_name

#: Settings that each group may have as it likes: what it has of its hosts, what it shows, and what is its own.
OWN = (
    "threads", "output", "trace", "notes", "checkpoint_dir", "checkpoint_seconds", "groups", "servers", "faults",
    "min_ranks", "max_restarts", "resume", "progress", "watch", "watch_dir", "metrics", "center_network", "seed",
    "join", "stall_seconds", "stall_abort_seconds", "declared",
)  # fmt: skip


def of(settings: Settings, variables: Sequence[Any]) -> dict[str, Any]:
    """The terms of this process, as JSON can hold them.

    Args:
        variables: the weights that the center has, of Keras or TensorFlow.
    """
    from matex_tf import __version__

    values = {flag_name(name): str(value) for name, value in settings.values().items() if name not in OWN}
    shapes = [f"{'x'.join(map(str, variable.shape)) or 'scalar'} {_dtype(variable)}" for variable in variables]
    script, *arguments = sys.argv or [""]
    return {
        "version": __version__,
        "script": os.path.basename(script),
        "arguments": arguments,
        "settings": values,
        "weights": shapes,
    }


def _dtype(variable: Any) -> str:
    return str(getattr(variable.dtype, "name", variable.dtype))
