"""Experiment trackers: one process reports the run, the first rank. On the others their own switches turn them off.

Every rank runs the script, so each would open a run of its own at the tracker's server. What is in `SWITCHES` is set
once a tracker is imported, and holds for processes that the rank starts as well. A script that names a mode by itself,
such as `wandb.init(mode="online")`, has it on the first rank, or on every rank if it asks for its rank. With layers a
run that is offline is so on every rank: the script finds its files.

Relies on the trackers' documents, see each line.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import wrapt

from matex_tf.core import namespaces, world
from matex_tf.patches.common import active_flag, log_once, wrapping
from matex_tf.patches.files import callers

#: By the name of a module, the variables with which it reports nothing, and says so itself in its documents.
SWITCHES: Mapping[str, Mapping[str, str]] = {
    "wandb": {"WANDB_MODE": "disabled"},  # docs.wandb.ai: Environment variables
    "clearml": {"CLEARML_OFFLINE_MODE": "1"},  # clear.ml/docs: Environment variables; and `Task.set_offline`
    # comet.com/docs: Configure; it sets `disabled` of every experiment, the second in older versions
    "comet_ml": {"COMET_AUTO_LOG_DISABLE": "1", "COMET_DISABLE_AUTO_LOGGING": "1"},
    "neptune": {"NEPTUNE_MODE": "debug"},  # docs.neptune.ai: Environment variables
    "mlflow": {},  # has none: see `_mlflow`
}
#: The functions that begin a run, and their argument `mode`, which comes before the environment.
BEGINS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "wandb": ("disabled", ("init",)),
    "neptune": ("debug", ("init_run", "init_model", "init_model_version", "init_project")),
}


def install(module: ModuleType) -> None:
    """Switch a tracker off, on every rank but the first."""
    name = module.__name__
    if wrapping.is_only_rank():
        return
    log_once.log(f"{name} is imported: rank 0 reports the run, other ranks report nothing")
    if world.rank() == 0:
        return
    os.environ.update({key: to for key, to in SWITCHES[name].items() if not _stays(os.environ.get(key, ""))})
    mode, functions = BEGINS.get(name, ("", ()))
    for function in functions:
        if hasattr(module, function):
            wrapt.wrap_function_wrapper(module, function, functools.partial(_in_mode, mode))
    if name == "clearml":
        module.Task.set_offline(True)
    elif name == "mlflow":
        _mlflow(module)


def _in_mode(mode: str, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    if kwargs.get("mode") is not None and not _stays(kwargs["mode"]) and not callers.asks():
        kwargs = {**kwargs, "mode": mode}
    return wrapped(*args, **kwargs)


def _stays(mode: str) -> bool:
    """Whether a run that writes files alone may go on: into a layer of this rank's own."""
    return mode in ("offline", "dryrun") and active_flag.layers().on


def _mlflow(module: ModuleType) -> None:
    """MLflow has an address, and nothing else: where that is a server's, runs go to a directory that is thrown away."""
    if not active_flag.layers().on or _is_far(os.environ.get("MLFLOW_TRACKING_URI", "")):
        module.set_tracking_uri(_nowhere())
    wrapt.wrap_function_wrapper(module, "set_tracking_uri", _set_uri)


def _set_uri(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    uri = kwargs.get("uri", args[0] if args else "")
    if active_flag.layers().on and not _is_far(str(uri)):
        return wrapped(*args, **kwargs)
    return wrapped(_nowhere())


def _is_far(uri: str) -> bool:
    """Whether runs go to another machine: with layers, files and SQLite are a rank's own."""
    return "://" in uri and not uri.startswith(("file:", "sqlite:"))


def _nowhere() -> str:
    """A store of runs of this rank's own, and of their files."""
    folder = tempfile.mkdtemp(prefix="matex-mlflow-")
    atexit.register(namespaces.here_alone(shutil.rmtree), folder, ignore_errors=True)
    os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = folder  # read where MLflow opens a store of SQLite
    return f"sqlite:///{folder}/runs.db"
