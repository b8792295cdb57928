"""Where ranks may die, `History` says how many there were at the end of each epoch, as `world_size`.

Relies on (Keras 3.3 to 3.15): `History.on_epoch_end(epoch, logs)` and `History.history`, both public.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from matex_tf.core import world
from matex_tf.patches.common import wrapping


def install(module: ModuleType) -> None:
    """Patch keras.src.callbacks.history."""
    wrapping.wrap(module, "History.on_epoch_end", _count_ranks)


def _count_ranks(wrapped: Any, history: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    if world.current().survives_failures:
        history.history.setdefault("world_size", []).append(world.size())
    return result
