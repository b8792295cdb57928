"""Checkpoints, saved models and summaries of a script's own loop: written once, by rank 0.

Relies on (TensorFlow 2.16 to 2.21): `tf.saved_model.save`, `tf.summary.create_file_writer`, public,
and the places where they are defined, `saved_model.save.save` and `summary_ops_v2.create_file_writer_v2`, private;
`tf.train.Checkpoint._write(path, options)`, which `write`, `save` and `CheckpointManager.save` call,
`CheckpointManager._record_state` and `checkpoint_management._delete_file_if_exists`, private.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

from matex_tf.core import world
from matex_tf.patches.common import batch_share, wrapping
from matex_tf.patches.common.active_flag import alone, each_writes, layers
from matex_tf.patches.loops import position, replica_sync
from matex_tf.patches.saving import agreed_paths, model_files
from matex_tf.state import run_state


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    run_state.part(model_files.BeforeWriting).append(before_writing)
    wrapping.wrap(module, "train.Checkpoint._write", _checkpoint)
    wrapping.wrap(module, "compat.v1.train.Checkpoint._write", _checkpoint)
    wrapping.wrap(module, "train.CheckpointManager._record_state", on_rank_0)
    management = importlib.import_module("tensorflow.python.checkpoint.checkpoint_management")
    wrapping.wrap(management, "_delete_file_if_exists", on_rank_0)
    _wrap_at_its_source(module, "saved_model.save", "tensorflow.python.saved_model.save", "save", _saved_model)
    summaries = "tensorflow.python.ops.summary_ops_v2"
    _wrap_at_its_source(module, "summary.create_file_writer", summaries, "create_file_writer_v2", _summaries)


def _wrap_at_its_source(module: ModuleType, path: str, source: str, name: str, wrapper: Any) -> None:
    """Wrap a function where it is defined, and its public name: `import tensorflow.saved_model` makes that anew."""
    wrapping.require(module, path)
    defined = importlib.import_module(source)
    wrapping.wrap(defined, name, wrapper)
    owner, _, public = path.rpartition(".")
    setattr(wrapping.require(module, owner), public, getattr(defined, name))


def on_rank_0(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Do it on rank 0, and nothing on the others; on each where each has a layer. A wrapper: see `wrapping.wrap`."""
    return wrapped(*args, **kwargs) if layers().on or world.current().rank == 0 else None


def before_writing() -> None:
    """What all ranks do before one of them writes."""
    if not alone and position.active():
        replica_sync.merge_statistics()
        replica_sync.check()


def _checkpoint(wrapped: Any, checkpoint: Any, args: Any, kwargs: Any) -> Any:
    before_writing()
    name = next((name for name in ("save_path", "file_prefix") if name in kwargs), "")
    prefix = agreed_paths.agreed(os.fspath(kwargs[name] if name else args[0]), "write a checkpoint")
    args, kwargs = (args, {**kwargs, name: prefix}) if name else ((prefix, *args[1:]), kwargs)
    shared = model_files.shared(lambda: wrapped(*args, **kwargs), f"write {prefix}", f"{prefix}.index")
    agreed_paths.offer(prefix, (".index", ".data-00000-of-00001"))
    if world.current().rank and not each_writes():
        options = kwargs.get("options") or (args[1] if len(args) > 1 else None)
        for callback in getattr(options, "experimental_write_callbacks", None) or ():
            if callback.__name__ == "_record_and_sweep_state":  # the manager's list of what there is; writes nothing
                callback(shared)
    return shared


def _saved_model(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    before_writing()
    given = os.fspath(args[1] if len(args) > 1 else kwargs["export_dir"])
    directory = agreed_paths.agreed(given, "write a SavedModel")
    path = os.path.join(directory, "saved_model.pb")
    result = model_files.by_one_rank(lambda: wrapped(*args, **kwargs), f"write {directory}", path)
    agreed_paths.offer(directory)
    return result


def _summaries(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    if batch_share.in_keras() or layers().on or world.current().rank == 0:
        return wrapped(*args, **kwargs)
    import tensorflow as tf

    return tf.summary.create_noop_writer()
