"""What lets a script stay as it is: changes to Keras, TensorFlow and NumPy, made when those are imported.

A patch is one small file for one thing. It says at its top which names of which versions it relies on;
`wrapping.require` stops the job with a clear message where such a name is gone. With a world of one rank every patch
steps aside.

It may import all of matex_tf but job and cli. Start reading in fit/trainer.py.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType

import wrapt

from matex_tf import settings
from matex_tf.core import starting
from matex_tf.patches import table
from matex_tf.patches.common import keras_lines
from matex_tf.patches.table import FILES, PATCHES
from matex_tf.state import run_state


def install(seed: int | None = None) -> None:
    """Patch what is imported already, and the rest when it is imported.

    Args:
        seed: seed for TensorFlow and for NumPy generators that are made without one, the same on every rank.

    Raises:
        NameMoved: this Keras lacks a name that a patch relies on (raised at the import of Keras).
    """
    from matex_tf.patches.common import seeds

    run = run_state.current()
    if seed is None or seed != run.prepared:  # or what was imported has drawn from it already, as in any rank
        seeds.use(seed)
    if run.patched:
        return
    run.patched = True
    if run.prepared is not None:
        seeds.seed_tensorflow(sys.modules["tensorflow"])
        from matex_tf.patches.imports import tried

        for package in tried.PACKAGES.intersection(sys.modules):  # imported before there were ranks
            tried.install(sys.modules[package])
        return
    _patch_imports()


def prepare(seed: int) -> None:
    """Patch in a process from which a rank will be forked, before it imports TensorFlow; what depends on the rank
    waits. The forked process calls `install` as any rank does.

    Args:
        seed: for generators that are made meanwhile without one. It should be that of the job, if it is known.
    """
    from matex_tf.patches.common import seeds

    seeds.use(seed)
    run_state.current().prepared = seed
    _patch_imports()


def _patch_imports() -> None:
    from matex_tf.features import registry
    from matex_tf.launch import garbage
    from matex_tf.patches.imports import dataset_alias

    dataset_alias.install()
    registry.start()
    for module, patch in table.recording() if starting.recorded() else ():
        _register(module, patch)
    for module, patch in (*PATCHES, *_of_files()):
        _register(module, f"{__name__}.{patch}")
    for module, patch in table.of_features():
        _register(module, patch)
    wrapt.register_post_import_hook(_apply_waiting, "tensorflow")
    garbage.install()


def install_recording(seed: int) -> None:
    """In a script that runs on one rank as Python runs it, write down what it computes.

    Args:
        seed: as for `install`.
    """
    from matex_tf.patches.common import seeds

    seeds.use(seed)
    orders = ("keras.src.backend.tensorflow.trainer", "data.epoch_orders"), ("tensorflow", "division.epoch_draws")
    for module, patch in (("tensorflow", "common.seeds"), *orders):
        _register(module, f"{__name__}.{patch}")
    for module, patch in table.recording():
        _register(module, patch)
    wrapt.register_post_import_hook(_apply_waiting, "tensorflow")


def installed() -> bool:
    """Whether this process is a rank of a run, with patches in place."""
    return run_state.current().patched


def finish() -> None:
    """What all ranks do when the script has ended.

    Raises:
        MatexError: see `sharing_report.finish`.
    """
    from matex_tf.patches.common import sharing_report
    from matex_tf.patches.steps import counting

    if "matex_tf.patches.loops.replica_sync" in sys.modules:
        from matex_tf.patches.loops import replica_sync

        replica_sync.check()
    if "matex_tf.patches.turns.from_generator" in sys.modules:
        from matex_tf.patches.turns import from_generator

        run_state.current().part(from_generator.OfLoops).close()
    counting.finish()
    settings.current().call_each("finish")
    sharing_report.finish()


def _of_files() -> tuple[tuple[str, str], ...]:
    """The patches of what a script does to files; none with `--files every-rank`."""
    if settings.current().files == "every-rank":  # with layers they step aside; whether there are any is not known yet
        return ()
    from matex_tf.patches.files import calls

    return (*((module, "files.calls") for module in calls.modules()), *FILES)


def _register(place: str, patch: str) -> None:
    for name in keras_lines.names(place):
        wrapt.register_post_import_hook(_applier(place, patch), name)


def _applier(place: str, patch: str) -> Callable[[ModuleType], None]:
    def apply(module: ModuleType) -> None:
        from matex_tf.patches.imports import other_frameworks

        if keras_lines.place(module.__name__) != place:  # of the other Keras, under the same name
            return
        kind = other_frameworks.backend() if module.__name__.startswith("keras.") else "tensorflow"
        if not table.serves(patch.removeprefix(f"{__name__}."), place, kind):
            return
        if place.startswith("tf_keras.") and _is_loading("tensorflow"):
            run_state.current().waiting.append(lambda: put_on(module))
        else:
            put_on(module)

    def put_on(module: ModuleType) -> None:
        importlib.import_module(patch).install(module)

    return apply


def _is_loading(name: str) -> bool:
    """Whether the import of a module has begun, and has not ended."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _apply_waiting(_: ModuleType) -> None:
    """TensorFlow imports Keras 2 before it is complete itself, with TF_USE_LEGACY_KERAS=1 or before 2.16: what patches
    that waits."""
    waiting = run_state.current().waiting
    while waiting:
        waiting.pop(0)()
