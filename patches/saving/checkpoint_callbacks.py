"""`ModelCheckpoint` and `BackupAndRestore`: one decision and one writer.

Relies on (Keras 3.3 to 3.15): `ModelCheckpoint._save_model(epoch, batch, logs)`, `BackupAndRestore._save_model()`
(private) and `BackupAndRestore.on_train_end(logs)` (public); (tf_keras 2.16 to 2.21) the same of `ModelCheckpoint`, and
`WorkerTrainingState.back_up`, `delete_backup` and `_model`, private.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from matex_tf.core import world
from matex_tf.patches.common import wrapping
from matex_tf.patches.saving import agreed_paths, model_files


def install(module: ModuleType) -> None:
    """Patch keras.src.callbacks.model_checkpoint and keras.src.callbacks.backup_and_restore.

    And of tf_keras.src: callbacks and distribute.worker_training_state.
    """
    if module.__name__.endswith(("model_checkpoint", ".callbacks")):
        wrapping.wrap(module, "ModelCheckpoint._save_model", _checkpoint)
    elif module.__name__.endswith("worker_training_state"):
        wrapping.wrap(module, "WorkerTrainingState.back_up", _back_up)
        wrapping.wrap(module, "WorkerTrainingState.delete_backup", _delete)
    else:
        wrapping.wrap(module, "BackupAndRestore._save_model", _backup)
        wrapping.wrap(module, "BackupAndRestore.on_train_end", _clean_up)


def _checkpoint(wrapped: Any, callback: Any, args: Any, kwargs: Any) -> Any:
    """In the middle of an epoch the ranks' logs are their own, so rank 0's decide for all."""
    epoch, batch, logs, *_ = wrapping.taken(args, kwargs, epoch=None, batch=None, logs=None)
    if batch is not None:
        logs = world.current().broadcast(dict(logs or {}), "share the logs that a checkpoint goes by")
    return wrapped(epoch, batch, logs)


def _backup(wrapped: Any, callback: Any, args: Any, kwargs: Any) -> Any:
    model_files.merge_statistics(callback.model)
    model_files.by_one_rank(lambda: wrapped(*args, **kwargs), "back up the training state")
    agreed_paths.offer(os.fspath(callback.backup_dir))


def _back_up(wrapped: Any, state: Any, args: Any, kwargs: Any) -> Any:
    """Of Keras 2."""
    model_files.merge_statistics(state._model)
    model_files.by_one_rank(lambda: wrapped(*args, **kwargs), "back up the training state")


def _delete(wrapped: Any, state: Any, args: Any, kwargs: Any) -> Any:
    model_files.by_one_rank(lambda: wrapped(*args, **kwargs), "remove the backup of a finished training")


def _clean_up(wrapped: Any, callback: Any, args: Any, kwargs: Any) -> Any:
    model_files.by_one_rank(lambda: wrapped(*args, **kwargs), "remove the backup of a finished training")
    if not os.path.exists(callback.backup_dir):
        agreed_paths.withdraw(os.fspath(callback.backup_dir))
