"""Models and weights are written by rank 0, once; every rank sees the file when the call returns.

One file gets its name when it is whole (see `atomic_file`): a full disk, or a death, leaves the one that was there.

Weights in several files have a list of them, a JSON whose `weight_map` has their names (Keras 3.10 to 3.15).

Relies on (Keras 3.3 to 3.15): `saving_api.save_model(model, filepath, ...)`, `saving_api.save_weights(model,
filepath, ...)`, `Model.save_weights(filepath)` and `Model.export(filepath)`, all public.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, cast

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.common import carried_error, keras_lines, log_once, model_state, wrapping
from matex_tf.patches.common.active_flag import ActiveFlag, alone, each_writes, layers
from matex_tf.patches.saving import agreed_paths
from matex_tf.patches.shards import serving
from matex_tf.state import run_state
from matex_tf.storage import atomic_file

_FILES = (".keras", ".h5", ".hdf5")
_SEEN_WITHIN_SECONDS = 5.0  # how long a network file system may take to show a new file


class BeforeWriting(list[Callable[[], None]]):
    """Of a run: what all ranks do before a model is written."""


#: While a file is written beside its place: Keras' methods call its functions.
_writing = ActiveFlag("writing a file")


def install(module: ModuleType) -> None:
    """Patch keras.src.saving.saving_api, tf_keras.src.saving.saving_api and keras.src.models.model."""
    if module.__name__.endswith("saving_api"):
        for name in ("save_model", "save_weights"):
            wrapping.wrap(module, name, lambda wrapped, instance, args, kwargs: _save(wrapped, args, kwargs, 1))
        wrapping.rebind(module, "save_model", "save_weights")
    else:
        for name in ("save_weights", "export"):
            wrapping.wrap(
                module,
                f"Model.{name}",
                lambda wrapped, instance, args, kwargs: _save(wrapped, (instance, *args), kwargs, 1, bound=True),
            )


def _save(wrapped: Any, args: Any, kwargs: Any, position: int, bound: bool = False) -> Any:
    model = args[0] if args else kwargs.get("model")
    path = kwargs.get("filepath", args[position] if len(args) > position else None)
    arguments = args[1:] if bound else args
    if not isinstance(path, (str, os.PathLike)):
        return wrapped(*arguments, **kwargs)
    prepare(model)
    if wrapped.__name__ == "export" and settings.current().shard != "none" and not alone:
        from matex_tf.patches.shards import variable  # not where Keras computes with something else than TensorFlow

        variable.join(keras_lines.variables(model))  # functions are traced, which read whole values
    path = agreed_paths.agreed(os.fspath(path), f"write {_kind(os.fspath(path))}")

    def write(target: str | os.PathLike[str]) -> Any:
        if "filepath" in kwargs:
            return wrapped(*arguments, **{**kwargs, "filepath": target})
        place = position - bound
        return wrapped(*arguments[:place], target, *arguments[place + 1 :], **kwargs)

    whole_file = not _writing and not (bound and wrapped.__name__ == "export")
    if whole_file and _is_one_file(path, args[position + 1 :], kwargs):
        result = by_one_rank(lambda: _put(path, write), f"write {path}", path)
    elif keras_lines.is_keras_2(model) and wrapped.__name__ == "save_weights" and not path.endswith(_FILES):
        result = by_one_rank(lambda: write(path), f"write {path}")  # several files, whose names begin so
        agreed_paths.offer(path, (".index", ".data-00000-of-00001"))
    else:
        result = by_one_rank(lambda: write(path), f"write {path}", path)
    agreed_paths.offer(path)
    if path.endswith(".json"):
        agreed_paths.offer(os.path.dirname(os.path.abspath(path)), [os.sep + part for part in _parts(path)])
    return result


def _parts(path: str) -> list[str]:
    """The files beside it that have the weights of a model, of which the one at `path` has a list."""
    try:
        with open(path, encoding="utf-8") as file:
            places = json.load(file)["weight_map"].values()
    except (OSError, ValueError, KeyError):  # another host has it, or it is another kind of file
        return []
    return sorted({part for place in places for part in ([place] if isinstance(place, str) else place)})


def _kind(path: str) -> str:
    """What is written, in words that are the same for paths that differ between ranks."""
    return f"a file {path[path.rfind('.') :]}" if path.endswith((".keras", ".h5", ".hdf5", ".json")) else "a model"


def prepare(model: Any) -> None:
    """Let every rank have what is to be written, unless this rank writes by itself. Every rank must call."""
    if alone:
        return
    if hasattr(model, "metrics"):
        merge_statistics(model)
    for make_ready in run_state.part(BeforeWriting):
        make_ready()


def merge_statistics(model: Any) -> None:
    """Let every rank have the state of layers over all ranks, see `weights`; where there is none, nothing is imported
    for it: Keras may compute with something else than TensorFlow."""
    if model_state.of(model).unmerged:
        from matex_tf.patches.keras import weights

        weights.merge_statistics(model)


def _is_one_file(path: str, more: Sequence[Any], kwargs: Any) -> bool:
    """Whether Keras writes one file, and does not ask before it replaces one.

    Not directories, and not weights in several files: what is in them cannot get its name at once.

    Args:
        more: arguments after the path: `overwrite`, and `zipped` or `max_shard_size`.
    """
    overwrite, apart = (*more, True, None)[0], kwargs.get("zipped", kwargs.get("max_shard_size", None))
    asks = not kwargs.get("overwrite", overwrite) and os.path.exists(path)
    apart = more[1] if len(more) > 1 else apart
    asks |= kwargs.get("save_format") == "tf"  # of Keras 2: a folder
    return path.endswith(_FILES) and "://" not in path and not asks and apart in (None, True)


def _put(path: str | os.PathLike[str], write: Callable[[str], Any]) -> Any:
    with _writing():
        return atomic_file.put(path, write)


def writes() -> bool:
    """Whether this rank writes what is written once: the first one, and none of a group that has joined a job; each one
    into its own layer."""
    return layers().on or (world.current().rank == 0 and not settings.current().is_guest)


def by_one_rank(write: Callable[[], Any], what: str, path: str | None = None) -> Any:
    """Call `write` on rank 0 alone while the others wait.

    Args:
        what: the purpose, see `World.barrier`.
        path: the file that must be there afterwards; None where it is not known.

    Returns:
        What `write` returned, on rank 0; None elsewhere.

    Raises:
        Exception: what `write` raised, on every rank.
    """
    if each_writes():
        return write()
    ranks = world.current()
    result: Any = None
    failure: Exception | None = None

    def attempt() -> bytes | None:
        """The error of the rank that writes; another rank writes anew where that one dies."""
        nonlocal result, failure
        ranks.barrier(what)
        end = f"end to {what}"
        if writes():
            with serving.asking(lambda asked: ranks.broadcast(asked, end)):
                _write()
        said = ranks.broadcast(failure and carried_error.pack(failure, f"rank 0 could not {what}: "), end)
        return cast("bytes | None", serving.answered(said, lambda: ranks.broadcast(None, end)))

    def _write() -> None:
        nonlocal result, failure
        try:
            with alone():
                result = write()
        except Exception as error:
            failure = error

    said = ranks.run_atomically(attempt)
    if failure is not None:
        raise failure
    if said is not None:
        raise carried_error.unpack(said)
    if path is not None and not settings.current().is_guest and not _appears(path):
        log_once.log(f"{path} is on a disk that only {ranks.hosts[0]} has: other hosts do not see it")
    return result


def shared(write: Callable[[], Any], what: str, path: str | None = None) -> Any:
    """Call `write`; see `by_one_rank`. Its result, any picklable object, is given to every rank."""
    if each_writes():
        return write()
    return world.current().broadcast(by_one_rank(write, what, path), f"share the result of: {what}")


def _appears(path: str) -> bool:
    """Whether a file is there, on every rank, within a few seconds."""
    end = time.monotonic() + _SEEN_WITHIN_SECONDS
    ranks = world.current()
    here = os.path.exists(path) or "://" in path
    while not here and len(set(ranks.hosts)) > 1 and time.monotonic() < end:
        time.sleep(0.05)
        here = os.path.exists(path)
    return all(ranks.allgather(here, "look for a written file"))
