"""`ModelCheckpoint` and `BackupAndRestore`: one decision and one writer.

Relies on (Keras 3.3 to 3.15): `ModelCheckpoint._save_model(epoch, batch, logs)`, `BackupAndRestore._save_model()`
(private) and `BackupAndRestore.on_train_end(logs)` (public).
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from matex_tf.core import world
from matex_tf.patches.common import wrapping
from matex_tf.patches.keras import weights
from matex_tf.patches.saving import agreed_paths, model_files


def install(module: ModuleType) -> None:
    """Patch keras.src.callbacks.model_checkpoint and keras.src.callbacks.backup_and_restore."""
    if module.__name__.endswith("model_checkpoint"):
        wrapping.wrap(module, "ModelCheckpoint._save_model", _checkpoint)
    else:
        wrapping.wrap(module, "BackupAndRestore._save_model", _backup)
        wrapping.wrap(module, "BackupAndRestore.on_train_end", _clean_up)


def _checkpoint(wrapped: Any, callback: Any, args: Any, kwargs: Any) -> Any:
    """In the middle of an epoch the ranks' logs are their own, so rank 0's decide for all."""
    epoch, batch, logs = _checkpoint_arguments(*args, **kwargs)
    if batch is not None:
        logs = world.current().broadcast(dict(logs or {}), "share the logs that a checkpoint goes by")
    return wrapped(epoch, batch, logs)


def _checkpoint_arguments(epoch: Any, batch: Any, logs: Any) -> tuple[Any, Any, Any]:
    return epoch, batch, logs


def _backup(wrapped: Any, callback: Any, args: Any, kwargs: Any) -> Any:
    weights.merge_statistics(callback.model)
    model_files.by_one_rank(lambda: wrapped(*args, **kwargs), "back up the training state")
    agreed_paths.offer(os.fspath(callback.backup_dir))


def _clean_up(wrapped: Any, callback: Any, args: Any, kwargs: Any) -> Any:
    model_files.by_one_rank(lambda: wrapped(*args, **kwargs), "remove the backup of a finished training")
    if not os.path.exists(callback.backup_dir):
        agreed_paths.withdraw(os.fspath(callback.backup_dir))
