"""Files of a session are written once, by rank 0: savers, monitored sessions, event files.

A monitored session saves by the clock, and the clocks of ranks differ: there rank 0 writes what it has, and the others
neither write nor wait. All look for a checkpoint to go on from before any of them may have written one.

Relies on (TensorFlow 2.16 to 2.21): `tf.compat.v1.train.Saver.save` and `restore`, `SessionManager.prepare_session`,
and `CheckpointSaverHook`, public; `Saver._last_checkpoints`, `CheckpointSaverHook._save` and `EventFileWriter` of
tensorflow.python.summary.writer.event_file_writer, private.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

from matex_tf.core import world
from matex_tf.features.sessions import variables
from matex_tf.patches.common import wrapping
from matex_tf.patches.common.active_flag import alone
from matex_tf.patches.loops.files import on_rank_0
from matex_tf.patches.saving import agreed_paths, model_files


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    train = "compat.v1.train"
    wrapping.wrap(module, f"{train}.Saver.save", _save)
    wrapping.wrap(module, f"{train}.Saver.restore", _restore)
    wrapping.wrap(module, f"{train}.SessionManager.prepare_session", _prepare)
    for name in ("after_create_session", "after_run", "end"):
        wrapping.wrap(module, f"{train}.CheckpointSaverHook.{name}", on_rank_0)
    wrapping.wrap(module, f"{train}.CheckpointSaverHook._save", _save_by_clock)
    writers = importlib.import_module("tensorflow.python.summary.writer.event_file_writer")
    for name in ("__init__", "get_logdir", "reopen", "add_event", "flush", "close"):
        wrapping.wrap(writers, f"EventFileWriter.{name}", on_rank_0)


def _save(wrapped: Any, saver: Any, args: Any, kwargs: Any) -> Any:
    path = agreed_paths.agreed(os.fspath(args[1] if len(args) > 1 else kwargs["save_path"]), "write a checkpoint")
    result, kept = model_files.shared(
        lambda: (wrapped(*args, **kwargs), list(saver._last_checkpoints)), f"write {path}"
    )
    saver.set_last_checkpoints_with_time(kept)
    agreed_paths.offer(result or path, (".index", ".data-00000-of-00001", ".meta"))
    return result


def _restore(wrapped: Any, saver: Any, args: Any, kwargs: Any) -> Any:
    if alone or variables.by_itself:
        return wrapped(*args, **kwargs)
    session = args[0] if args else kwargs["sess"]
    path = args[1] if len(args) > 1 else kwargs["save_path"]
    agreed_paths.agreed(os.fspath(path or ""), "restore the variables of a session")
    model_files.by_one_rank(lambda: wrapped(*args, **kwargs), "restore a session")
    variables.broadcast(session)


def _prepare(wrapped: Any, manager: Any, args: Any, kwargs: Any) -> Any:
    """A new session, initialized or restored from what was there before."""
    if variables.by_itself:
        return wrapped(*args, **kwargs)
    ranks = world.current()
    with variables.by_itself():
        session = wrapped(*args, **kwargs)
    ranks.barrier("start a session")
    variables.broadcast(session)
    return session


def _save_by_clock(wrapped: Any, hook: Any, args: Any, kwargs: Any) -> Any:
    with alone():
        return wrapped(*args, **kwargs)
