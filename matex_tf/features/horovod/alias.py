"""`import horovod.tensorflow` and its kin, where Horovod is not installed: see `names`.

The modules are made up when they are asked for. They are looked for last, so that an installed Horovod wins, or first
once a script has imported `matex_tf.horovod.names`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import wrapt

from matex_tf.core import world
from matex_tf.patches.common import wrapping
from matex_tf.state import notes, run_state

#: Horovod's modules, and the module in `names` that serves each; "" for one that only holds others.
MODULES = {
    "horovod": "",
    "horovod.tensorflow": "tensorflow",
    "horovod.tensorflow.mpi_ops": "tensorflow",
    "horovod.tensorflow.functions": "tensorflow",
    "horovod.tensorflow.sync_batch_norm": "tensorflow",
    "horovod.tensorflow.compression": "optimizers.compression",
    "horovod.tensorflow.util": "util",
    "horovod.tensorflow.elastic": "elastic",
    "horovod.tensorflow.keras": "keras",
    "horovod.tensorflow.keras.callbacks": "callbacks",
    "horovod.tensorflow.keras.elastic": "elastic",
    "horovod.keras": "keras",
    "horovod.keras.callbacks": "callbacks",
    "horovod.keras.elastic": "elastic",
    "horovod.common": "",
    "horovod.common.elastic": "elastic",
    "horovod.common.exceptions": "core.exceptions",
    "horovod.common.process_sets": "core.process_sets",
    "horovod.common.util": "util",
    "horovod.runner": "",
    "horovod.runner.common": "",
    "horovod.runner.common.util": "",
    "horovod.runner.common.util.env": "environment",
}
VERSION = "0.28.1"

NOTE = (
    "the Horovod names are served by matex_tf: the batch is the rank's own, and nothing is split or averaged "
    "unless the script says so"
)

_NAMES = "matex_tf.features.horovod.names"


class Made:
    """Of a module: that it is one of these."""


_ELSEWHERE = {
    "torch": "matex_tf is for TensorFlow; PyTorch has torch.distributed.",
    "mxnet": "matex_tf is for TensorFlow.",
    "spark": "start the script with matex-tf run in place of horovod.spark.",
    "ray": "start the script with matex-tf run in place of horovod.ray.",
    "runner": "start the script with matex-tf run, or `matex-tf horovodrun -np 4 python train.py`.",
}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules in `MODULES`."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name.partition(".")[0] != "horovod":
            return None
        if name != "horovod" and not notes.has(sys.modules.get("horovod"), Made):
            return None
        part = name.split(".")[1] if "." in name else ""
        if part in _ELSEWHERE and name not in MODULES:
            raise ModuleNotFoundError(f"matex_tf has no {name}: {_ELSEWHERE[part]}", name=name)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name in MODULES else None

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        notes.put(module, Made())
        module.__path__ = []
        module.__version__ = VERSION  # type: ignore[attr-defined]
        own = MODULES[module.__name__]
        behind = importlib.import_module(f"{_NAMES}.{own}" if own else _NAMES)
        module.__doc__ = behind.__doc__
        if own:
            module.__dict__.update({name: value for name, value in vars(behind).items() if not name.startswith("__")})

        def missing(name: str) -> Any:
            if f"{module.__name__}.{name}" in MODULES:
                return importlib.import_module(f"{module.__name__}.{name}")
            if own:
                return getattr(behind, name)
            instead = (
                "start the script with matex-tf run" if name == "run" else "import horovod.tensorflow or horovod.keras"
            )
            raise AttributeError(f"{module.__name__} of matex_tf has no {name!r}: {instead}.", name=name)

        module.__getattr__ = missing  # type: ignore[method-assign]


def install(first: bool = False) -> None:
    """Make the names known. May be called more than once.

    Args:
        first: serve them where a Horovod is installed, too.
    """
    finders = [finder for finder in sys.meta_path if isinstance(finder, Finder)]
    for finder in finders[: 1 if first else 0]:
        sys.meta_path.remove(finder)
    if first:
        sys.meta_path.insert(0, Finder())
    elif not finders:
        sys.meta_path.append(Finder())


def _serve_older_keras(_: ModuleType) -> None:
    importlib.import_module("matex_tf.features.horovod.names.core.keras2").install()


def put_patches_aside(note: str = NOTE) -> None:
    """From now on the script's own words hold: no patch, random numbers of the rank's own, all GPUs of the node.

    Such a script takes its GPU by `local_rank()` from those of the node, and counts on ranks that shuffle differently.

    Args:
        note: the line that says so.
    """
    from matex_tf.patches.common import log_once, seeds

    if wrapping.is_aside():
        return
    wrapping.put_aside(True)
    if note == NOTE:
        wrapt.when_imported("keras")(_serve_older_keras)
    if not run_state.current().patched:
        return
    seeds.own_seeds()
    devices = run_state.current().part(run_state.Devices)
    if devices.shared_out and devices.listed is None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    elif devices.shared_out:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(devices.listed)
    if not world.current().is_single:
        log_once.log(note)
