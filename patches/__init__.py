"""What lets a script stay as it is: changes to Keras, TensorFlow and NumPy, made when those are imported.

A patch is one small file for one thing. It says at its top which names of which versions it relies on; `names.require`
stops the job with a clear message where such a name is gone. With a world of one rank every patch steps aside.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType

import wrapt

from matex_tf import settings

#: Names of modules, and the file that patches each.
PATCHES = (
    ("tensorflow", "seeds"),
    ("tensorflow", "distribution"),
    ("tensorflow", "autograph_files"),
    ("tensorflow", "sources"),
    ("tensorflow", "loops.iteration"),
    ("tensorflow", "loops.updates"),
    ("tensorflow", "loops.files"),
    ("tensorflow", "sessions.updates"),
    ("tensorflow", "sessions.runs"),
    ("tensorflow", "sessions.files"),
    ("keras.src.backend.tensorflow.trainer", "trainer"),
    ("keras.src.backend.tensorflow.trainer", "loops.keras_runs"),
    ("keras.src.optimizers.base_optimizer", "optimizer"),
    ("keras.src.optimizers.base_optimizer", "loops.updates"),
    ("keras.src.optimizers.loss_scale_optimizer", "loss_scaling"),
    ("keras.src.metrics.metric", "loops.results"),
    ("keras.src.metrics.reduction_metrics", "metrics"),
    ("keras.src.losses.loss", "losses"),
    ("keras.src.losses.loss", "own_losses"),
    ("keras.src.losses.losses", "coupled_losses"),
    ("keras.src.layers.layer", "activity"),
    ("keras.src.backend.tensorflow.nn", "normalization"),
    ("keras.src.callbacks.callback_list", "callbacks"),
    ("keras.src.callbacks.callback_list", "resuming"),
    ("keras.src.callbacks.callback_list", "paths"),
    ("keras.src.callbacks.model_checkpoint", "checkpoints"),
    ("keras.src.callbacks.backup_and_restore", "checkpoints"),
    ("keras.src.callbacks.history", "history"),
    ("keras.src.callbacks.progbar_logger", "bar"),
    ("keras.src.callbacks.csv_logger", "loggers"),
    ("keras.src.callbacks.tensorboard", "loggers"),
    ("keras.src.callbacks.remote_monitor", "loggers"),
    ("keras.src.saving.saving_api", "saving"),
    ("keras.src.saving.saving_api", "paths"),
    ("keras.src.models.model", "saving"),
    ("keras.src.models.model", "paths"),
    ("keras.src.utils.file_utils", "downloads"),
    ("numpy", "numpy_files"),
    ("os", "directories"),
    ("keras.src.layers.preprocessing.normalization", "sources"),
    ("keras.src.layers.preprocessing.discretization", "sources"),
    ("keras.src.layers.preprocessing.index_lookup", "sources"),
    ("keras.src.layers.preprocessing.text_vectorization", "sources"),
    ("keras.src.backend", "others"),
    ("keras.src.optimizers.base_optimizer", "others"),
    ("tf_keras", "others"),
    ("torch", "others"),
    ("jax", "others"),
)

#: The same for what goes on writing when the call has returned.
FILES = (
    *((module, "files.opened") for module in ("builtins", "pathlib", "gzip", "bz2", "lzma")),
    *((module, "files.archives") for module in ("zipfile", "tarfile")),
    ("sqlite3", "files.databases"),
    ("h5py", "files.hdf5"),
    *((module, "files.processes") for module in ("os", "subprocess")),
    ("os", "files.descriptors"),
    *((module, "files.logs") for module in ("logging", "logging.handlers")),
    ("tensorflow", "files.records"),
)

_installed = False


def install(seed: int | None = None) -> None:
    """Patch what is imported already, and the rest when it is imported.

    Args:
        seed: seed for TensorFlow and for NumPy generators that are made without one, the same on every rank.

    Raises:
        NameMoved: this Keras lacks a name that a patch relies on (raised at the import of Keras).
    """
    global _installed
    from matex_tf.patches import dataset_names, horovod_names, seeds

    seeds.use(seed)
    if _installed:
        return
    _installed = True
    dataset_names.install()
    horovod_names.install()
    for module, patch in (*PATCHES, *_of_files()):
        wrapt.register_post_import_hook(_applier(patch), module)


def installed() -> bool:
    """Whether this process is a rank of a run, with patches in place."""
    return _installed


def finish() -> None:
    """What all ranks do when the script has ended.

    Raises:
        MatexError: see `account.finish`.
    """
    from matex_tf.patches import account

    if "matex_tf.patches.loops.alike" in sys.modules:
        from matex_tf.patches.loops import alike

        alike.check()
    account.finish()


def _of_files() -> tuple[tuple[str, str], ...]:
    """The patches of what a script does to files; none with `--files every-rank`."""
    if settings.current().files != "once":
        return ()
    from matex_tf.patches.files import calls

    return (*((module, "files.calls") for module in calls.modules()), *FILES)


def _applier(patch: str) -> Callable[[ModuleType], None]:
    def apply(module: ModuleType) -> None:
        from matex_tf.patches import others

        if patch != "others" and module.__name__.startswith("keras.") and others.backend() != "tensorflow":
            return
        importlib.import_module(f"matex_tf.patches.{patch}").apply(module)

    return apply


def keras_version() -> str:
    """The version of the Keras that is imported, or "unknown"."""
    keras = sys.modules.get("keras.src.version") or sys.modules.get("keras")
    return str(getattr(keras, "__version__", "unknown"))
