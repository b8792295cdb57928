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

from matex_tf import world
from matex_tf.patches import names, paths, saving, scope
from matex_tf.patches.loops import alike, position


def apply(module: ModuleType) -> None:
    """Patch tensorflow."""
    saving.before_writing.append(before_writing)
    names.wrap(module, "train.Checkpoint._write", _checkpoint)
    names.wrap(module, "compat.v1.train.Checkpoint._write", _checkpoint)
    names.wrap(module, "train.CheckpointManager._record_state", on_rank_0)
    management = importlib.import_module("tensorflow.python.checkpoint.checkpoint_management")
    names.wrap(management, "_delete_file_if_exists", on_rank_0)
    _wrap_at_its_source(module, "saved_model.save", "tensorflow.python.saved_model.save", "save", _saved_model)
    summaries = "tensorflow.python.ops.summary_ops_v2"
    _wrap_at_its_source(module, "summary.create_file_writer", summaries, "create_file_writer_v2", _summaries)


def _wrap_at_its_source(module: ModuleType, path: str, source: str, name: str, wrapper: Any) -> None:
    """Wrap a function where it is defined, and its public name: `import tensorflow.saved_model` makes that anew."""
    names.require(module, path)
    defined = importlib.import_module(source)
    names.wrap(defined, name, wrapper)
    owner, _, public = path.rpartition(".")
    setattr(names.require(module, owner), public, getattr(defined, name))


def on_rank_0(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Do it on rank 0, and nothing on the others."""
    return wrapped(*args, **kwargs) if world.current().rank == 0 else None


def before_writing() -> None:
    """What all ranks do before one of them writes."""
    if not saving.alone and position.active():
        alike.merge_statistics()
        alike.check()


def _checkpoint(wrapped: Any, checkpoint: Any, args: Any, kwargs: Any) -> Any:
    before_writing()
    name = next((name for name in ("save_path", "file_prefix") if name in kwargs), "")
    prefix = paths.agreed(os.fspath(kwargs[name] if name else args[0]), "write a checkpoint")
    args, kwargs = (args, {**kwargs, name: prefix}) if name else ((prefix, *args[1:]), kwargs)
    shared = saving.shared(lambda: wrapped(*args, **kwargs), f"write {prefix}", f"{prefix}.index")
    paths.offer(prefix, (".index", ".data-00000-of-00001"))
    if world.current().rank and not saving.alone:
        options = kwargs.get("options") or (args[1] if len(args) > 1 else None)
        for callback in getattr(options, "experimental_write_callbacks", None) or ():
            if callback.__name__ == "_record_and_sweep_state":  # the manager's list of what there is; writes nothing
                callback(shared)
    return shared


def _saved_model(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    before_writing()
    given = os.fspath(args[1] if len(args) > 1 else kwargs["export_dir"])
    directory = paths.agreed(given, "write a SavedModel")
    path = os.path.join(directory, "saved_model.pb")
    result = saving.by_one_rank(lambda: wrapped(*args, **kwargs), f"write {directory}", path)
    paths.offer(directory)
    return result


def _summaries(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    if scope.in_keras() or world.current().rank == 0:
        return wrapped(*args, **kwargs)
    import tensorflow as tf

    return tf.summary.create_noop_writer()
