"""`OrbaxCheckpoint`: one decision and one writer; the others wait for what is written at the end.

Relies on (Keras 3.13 to 3.15, which have it): `OrbaxCheckpoint._save_checkpoint(step, logs)` and `._is_improvement`
(private), `.on_train_end(logs)`, `.wait_until_finished()` and `.directory` (public).
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from matex_tf.core import world
from matex_tf.patches.common import wrapping
from matex_tf.patches.saving import agreed_paths, model_files


def install(module: ModuleType) -> None:
    """Patch keras.src.callbacks.orbax_checkpoint."""
    wrapping.wrap(module, "OrbaxCheckpoint._is_improvement", _decide)
    wrapping.wrap(module, "OrbaxCheckpoint._save_checkpoint", _save)
    wrapping.wrap(module, "OrbaxCheckpoint.on_train_end", _finish)
    wrapping.wrap(module, "OrbaxCheckpoint.wait_until_finished", _finish)


def _decide(wrapped: Any, callback: Any, args: Any, kwargs: Any) -> Any:
    """In the middle of an epoch the ranks' logs are their own, so rank 0's decide for all."""
    return world.current().broadcast(wrapped(*args, **kwargs), "share whether a model is the best so far")


def _save(wrapped: Any, callback: Any, args: Any, kwargs: Any) -> Any:
    model_files.prepare(callback.model)
    model_files.by_one_rank(lambda: wrapped(*args, **kwargs), "write a checkpoint with Orbax")


def _finish(wrapped: Any, callback: Any, args: Any, kwargs: Any) -> Any:
    """What rank 0 writes in the background is there when any rank goes on."""
    model_files.by_one_rank(lambda: wrapped(*args, **kwargs), "finish the checkpoints of Orbax")
    if world.current().rank:
        wrapped(*args, **kwargs)  # it has written nothing, and has threads to end
    agreed_paths.offer(os.fspath(callback.directory))
