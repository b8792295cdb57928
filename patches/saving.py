"""Models and weights are written by rank 0, once; every rank sees the file when the call returns.

Relies on (Keras 3.3 to 3.15): `saving_api.save_model(model, filepath, ...)`, `saving_api.save_weights(model,
filepath, ...)`, `Model.save_weights(filepath)` and `Model.export(filepath)`, all public.
"""

from __future__ import annotations

import os
import shutil
import time
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from matex_tf import world
from matex_tf.errors import MatexError
from matex_tf.patches import names, notes, weights
from matex_tf.patches.inside import Inside

_SEEN_WITHIN_SECONDS = 5.0  # how long a network file system may take to show a new file
#: What all ranks do before a model is written.
before_writing: list[Callable[[], None]] = []

#: While this rank writes by itself, whatever the others do.
alone = Inside()


def apply(module: ModuleType) -> None:
    """Patch keras.src.saving.saving_api and keras.src.models.model."""
    if module.__name__.endswith("saving_api"):
        for name in ("save_model", "save_weights"):
            names.wrap(module, name, lambda wrapped, instance, args, kwargs: _save(wrapped, args, kwargs, 1))
    else:
        for name in ("save_weights", "export"):
            names.wrap(
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
    if not alone and hasattr(model, "metrics"):
        weights.merge_statistics(model)
    if not alone:
        for prepare in before_writing:
            prepare()

    def write(target: str | os.PathLike[str]) -> Any:
        if "filepath" in kwargs:
            return wrapped(*arguments, **{**kwargs, "filepath": target})
        place = position - bound
        return wrapped(*arguments[:place], target, *arguments[place + 1 :], **kwargs)

    may_replace = kwargs.get("overwrite", True) is True and len(args) <= position + 1
    whole = world.current().carries_on and may_replace and "://" not in os.fspath(path)
    return by_one_rank(
        lambda: _put_whole(path, write) if whole else write(path), f"write {os.fspath(path)}", os.fspath(path)
    )


def _put_whole(path: str | os.PathLike[str], write: Callable[[str], Any]) -> Any:
    """Write beside `path`, then move the whole file there: a rank that dies leaves the old file or the new one.

    What it leaves beside it has the same name each time, and is gone with the next file that is written.
    """
    folder, name = os.path.split(os.fspath(path))
    draft = os.path.join(folder, f".matex-writing-{name}")
    result = write(draft)
    if os.path.isfile(draft):
        os.replace(draft, path)
    elif os.path.isdir(draft):
        shutil.rmtree(path, ignore_errors=True)
        os.replace(draft, path)
    return result


def by_one_rank(write: Callable[[], Any], what: str, path: str | None = None) -> Any:
    """Call `write` on rank 0 alone while the others wait.

    Args:
        what: the purpose, see `World.meet`.
        path: the file that must be there afterwards; None where it is not known.

    Returns:
        What `write` returned, on rank 0; None elsewhere.

    Raises:
        MatexError: on the other ranks, where rank 0 got an exception; rank 0 raises that itself.
    """
    if alone:
        return write()
    ranks = world.current()
    result: Any = None
    failure: Exception | None = None

    def attempt() -> str | None:
        """The error of the rank that writes, in words; another rank writes anew where that one dies."""
        nonlocal result, failure
        ranks.meet(what)
        if ranks.rank == 0:
            _write()
        return ranks.share(failure and "".join(traceback.format_exception_only(failure)).strip(), f"end to {what}")

    def _write() -> None:
        nonlocal result, failure
        try:
            with alone():
                result = write()
        except Exception as error:
            failure = error

    said = ranks.whole(attempt)
    if failure is not None:
        raise failure
    if said is not None:
        raise MatexError(f"rank 0 could not {what}: {said}")
    if path is not None and not _appears(path):
        notes.say(f"{path} is on a disk that only {ranks.hosts[0]} has: other hosts do not see it")
    return result


def shared(write: Callable[[], Any], what: str, path: str | None = None) -> Any:
    """The same as `by_one_rank`, with a result, any picklable object, that every rank gets."""
    if alone:
        return write()
    return world.current().share(by_one_rank(write, what, path), f"share the result of: {what}")


def _appears(path: str) -> bool:
    """Whether a file is there, on every rank, within a few seconds."""
    end = time.monotonic() + _SEEN_WITHIN_SECONDS
    ranks = world.current()
    here = os.path.exists(path) or "://" in path
    while not here and len(set(ranks.hosts)) > 1 and time.monotonic() < end:
        time.sleep(0.05)
        here = os.path.exists(path)
    return all(ranks.gather(here, "look for a written file"))
