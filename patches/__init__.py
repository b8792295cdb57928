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
from matex_tf.patches.common import keras_lines, run_state
from matex_tf.verifying import record

#: Names of modules, and the file that patches each. Keras 2 is `tf_keras` here, also where it is installed as `keras`.
PATCHES = (
    ("tensorflow", "imports.tried"),
    ("keras", "imports.tried"),
    ("tf_keras", "imports.tried"),
    ("tensorflow", "imports.thread_pools"),
    ("tensorflow", "imports.allocator"),
    ("tensorflow", "common.seeds"),
    ("tensorflow", "fit.tf_distribute"),
    ("tensorflow", "saving.autograph_files"),
    ("tensorflow", "data.source_sharding"),
    ("tensorflow", "division.shuffle_first"),
    ("tensorflow", "division.csv_lines"),
    ("tensorflow", "turns.from_generator"),
    ("tensorflow", "keras.distinct_indices"),
    ("tensorflow", "random.stateless_ops"),
    ("tensorflow", "random.stateful_ops"),
    ("tensorflow", "random.not_by_row"),
    ("tensorflow", "random.mixed_rows"),
    ("keras.src.backend.tensorflow.random", "random.mixed_rows"),
    ("keras.src.layers.preprocessing.image_preprocessing.mix_up", "random.mixed_rows"),
    ("keras.src.layers.preprocessing.image_preprocessing.cut_mix", "random.mixed_rows"),
    ("keras.src.layers.preprocessing.image_preprocessing.mosaic", "random.mixed_rows"),
    ("tensorflow", "loops.iteration"),
    ("tensorflow", "loops.gradient_updates"),
    ("tensorflow", "loops.step_loss"),
    ("tensorflow", "loops.first_step"),
    ("tensorflow", "loops.compiled.one_rank_trace"),
    ("tensorflow", "loops.compiled.steps"),
    ("tensorflow", "loops.files"),
    ("tensorflow", "sessions.updates"),
    ("tensorflow", "sessions.session_run"),
    ("tensorflow", "sessions.files"),
    ("keras.src.backend.tensorflow.trainer", "fit.trainer"),
    ("keras.src.backend.tensorflow.trainer", "dynamics.changing_fit"),
    ("keras.src.backend.tensorflow.trainer", "loops.keras_loops"),
    ("keras.src.optimizers.base_optimizer", "keras.optimizer"),
    ("keras.src.optimizers.base_optimizer", "loops.gradient_updates"),
    ("keras.src.optimizers.base_optimizer", "samples.schedules"),
    ("keras.src.optimizers.loss_scale_optimizer", "keras.loss_scaling"),
    ("keras.src.metrics.metric", "loops.metric_results"),
    ("keras.src.metrics.reduction_metrics", "keras.metrics"),
    ("keras.src.losses.loss", "keras.losses"),
    ("keras.src.losses.loss", "across_rows.own_losses"),
    ("keras.src.losses.loss", "samples.row_losses"),
    ("keras.src.trainers.compile_utils", "samples.row_losses"),
    ("keras.src.trainers.compile_utils", "keras.output_losses"),
    ("keras.src.losses.losses", "across_rows.keras_losses"),
    ("keras.src.layers.layer", "keras.activity_regularizer"),
    ("keras.src.layers.layer", "random.not_by_row"),
    ("keras.src.layers.layer", "fit.step.one_rank_shapes"),
    ("keras.src.backend.tensorflow.nn", "keras.batch_norm"),
    ("keras.src.backend.tensorflow.ops.nn", "keras.batch_norm"),
    ("keras.src.layers.normalization.batch_normalization", "keras.batch_norm"),
    ("keras.src.callbacks.callback_list", "fit.batch_logs"),
    ("keras.src.callbacks.callback_list", "fit.stopping"),
    ("keras.src.callbacks.callback_list", "recovery.resume_fit"),
    ("keras.src.callbacks.callback_list", "samples.epochs"),
    ("keras.src.callbacks.callback_list", "saving.agreed_paths"),
    ("keras.src.callbacks.callback_list", "recording.progress"),
    ("keras.src.callbacks.model_checkpoint", "saving.checkpoint_callbacks"),
    ("keras.src.callbacks.backup_and_restore", "saving.checkpoint_callbacks"),
    ("keras.src.callbacks.orbax_checkpoint", "saving.orbax_checkpoint"),
    ("keras.src.callbacks.history", "fit.keras_callbacks"),
    ("keras.src.callbacks.progbar_logger", "fit.keras_callbacks"),
    ("keras.src.callbacks.csv_logger", "saving.log_callbacks"),
    ("keras.src.callbacks.tensorboard", "saving.log_callbacks"),
    ("keras.src.callbacks.remote_monitor", "saving.log_callbacks"),
    ("keras.src.saving.saving_api", "saving.model_files"),
    ("keras.src.saving.saving_api", "saving.agreed_paths"),
    ("keras.src.models.model", "saving.model_files"),
    ("keras.src.models.model", "saving.agreed_paths"),
    ("keras.src.utils.file_utils", "saving.downloads"),
    ("numpy", "saving.numpy_save"),
    ("os", "saving.mkdir"),
    ("keras.src.layers.preprocessing.normalization", "fit.adapt"),
    ("keras.src.layers.preprocessing.discretization", "fit.adapt"),
    ("keras.src.layers.preprocessing.index_lookup", "fit.adapt"),
    ("keras.src.layers.preprocessing.text_vectorization", "fit.adapt"),
    ("keras.src.backend", "imports.other_frameworks"),
    ("keras.src.optimizers.base_optimizer", "imports.other_frameworks"),
    ("tf_keras.src.engine.training", "keras2.trainer"),
    ("tf_keras.src.engine.data_adapter", "keras2.data"),
    ("tf_keras.src.engine.base_preprocessing_layer", "fit.adapt"),
    ("tf_keras.src.utils.data_utils", "keras2.sequences"),
    ("tf_keras.src.optimizers.optimizer", "keras2.optimizers"),
    ("tf_keras.src.optimizers.legacy.optimizer_v2", "keras2.optimizers"),
    ("tf_keras.src.mixed_precision.loss_scale_optimizer", "keras2.optimizers"),
    ("tf_keras.src.optimizers.optimizer_v1", "keras2.optimizers"),
    ("tf_keras.src.utils.losses_utils", "keras2.losses"),
    ("tf_keras.src.layers.normalization.batch_normalization", "keras2.batch_norm"),
    ("tf_keras.src.losses", "across_rows.own_losses"),
    ("tf_keras.src.losses", "across_rows.keras_losses"),
    ("tf_keras.src.metrics.base_metric", "keras.metrics"),
    ("tf_keras.src.metrics.base_metric", "loops.metric_results"),
    ("tf_keras.src.callbacks", "fit.batch_logs"),
    ("tf_keras.src.callbacks", "fit.keras_callbacks"),
    ("tf_keras.src.callbacks", "fit.stopping"),
    ("tf_keras.src.callbacks", "recovery.resume_fit"),
    ("tf_keras.src.callbacks", "saving.agreed_paths"),
    ("tf_keras.src.callbacks", "saving.checkpoint_callbacks"),
    ("tf_keras.src.callbacks", "saving.log_callbacks"),
    ("tf_keras.src.callbacks", "recording.progress"),
    ("tf_keras.src.distribute.worker_training_state", "saving.checkpoint_callbacks"),
    ("tf_keras.src.saving.saving_api", "saving.model_files"),
    ("tf_keras.src.saving.saving_api", "saving.agreed_paths"),
    ("tf_keras.src.engine.training", "saving.agreed_paths"),
    ("socket", "imports.server_ports"),
    ("wandb", "imports.trackers"),
    ("clearml", "imports.trackers"),
    ("comet_ml", "imports.trackers"),
    ("neptune", "imports.trackers"),
    ("mlflow", "imports.trackers"),
    ("diskcache", "imports.own_writers"),
    ("keras_tuner", "imports.own_writers"),
    ("lmdb", "imports.own_writers"),
    ("netCDF4", "imports.own_writers"),
    ("optuna", "imports.own_writers"),
    ("shelve", "imports.own_writers"),
    ("tables", "imports.own_writers"),
    ("zarr", "imports.own_writers"),
    ("torch", "imports.other_frameworks"),
    ("jax", "imports.other_frameworks"),
)

#: The same for what goes on writing when the call has returned.
FILES = (
    *((module, "files.handles.opened") for module in ("builtins", "pathlib", "gzip", "bz2", "lzma")),
    *((module, "files.handles.archives") for module in ("zipfile", "tarfile")),
    ("sqlite3", "files.handles.databases"),
    ("h5py", "files.handles.hdf5"),
    *((module, "files.handles.processes") for module in ("os", "subprocess")),
    ("os", "files.handles.descriptors"),
    ("numpy", "files.handles.memory_maps"),
    *((module, "files.handles.logs") for module in ("logging", "logging.handlers")),
    ("tensorflow", "files.handles.records"),
)

#: The same for `matex-tf verify`, which wants to know what a script computes; also on one rank. They come first, and so
#: see what the other patches give to Keras.
RECORDING = (
    ("keras.src.callbacks.callback_list", "recording.recorder"),
    ("keras.src.backend.tensorflow.trainer", "recording.recorder"),
    ("keras.src.optimizers.base_optimizer", "recording.recorder"),
    ("tf_keras.src.callbacks", "recording.keras2"),
    ("tf_keras.src.engine.training", "recording.keras2"),
    ("tf_keras.src.optimizers.optimizer", "recording.keras2"),
    ("tf_keras.src.optimizers.legacy.optimizer_v2", "recording.keras2"),
    ("tf_keras.src.mixed_precision.loss_scale_optimizer", "recording.keras2"),
)


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
    """The same in a process from which a rank will be forked, before it imports TensorFlow, but for what depends on the
    rank. The forked process calls `install` as any rank does.

    Args:
        seed: for generators that are made meanwhile without one. It should be that of the job, if it is known.
    """
    from matex_tf.patches.common import seeds

    seeds.use(seed)
    run_state.current().prepared = seed
    _patch_imports()


def _patch_imports() -> None:
    from matex_tf.patches.imports import dataset_alias, horovod_alias

    dataset_alias.install()
    horovod_alias.install()
    wrapt.register_post_import_hook(horovod_alias.leave_alone, "horovod.tensorflow")
    for module, patch in (*(RECORDING if recorded() else ()), *PATCHES, *_of_files()):
        _register(module, patch)
    wrapt.register_post_import_hook(_apply_waiting, "tensorflow")


def recorded() -> bool:
    """Whether what the script computes is written down."""
    return record.active()


def install_recording(seed: int) -> None:
    """In a script that runs on one rank as Python runs it, write down what it computes.

    Args:
        seed: as for `install`.
    """
    from matex_tf.patches.common import seeds

    seeds.use(seed)
    for module, patch in (("tensorflow", "common.seeds"), *RECORDING):
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

    if "matex_tf.patches.loops.replica_sync" in sys.modules:
        from matex_tf.patches.loops import replica_sync

        replica_sync.check()
    if "matex_tf.patches.turns.from_generator" in sys.modules:
        from matex_tf.patches.turns import from_generator

        run_state.current().part(from_generator.OfLoops).close()
    if wanted := settings.current().steps:
        _say_steps(wanted)
    if settings.current().scores_samples and not run_state.current().scored_fits:
        from matex_tf.patches.common import log_once

        log_once.log("--prune-samples and --sample-scores had no effect: the script has called no fit of Keras 3")
    sharing_report.finish()


def _say_steps(wanted: int) -> None:
    """Say where the script has ended before it came to the step at which it was to be ended."""
    from matex_tf.patches.common import log_once

    counted = run_state.current().trained
    if counted < wanted:
        log_once.log(
            f"the script came to its own end after {counted} training step{'s' * (counted != 1)} of fit and "
            f"train_on_batch, not {wanted} (--steps); those of other loops are not counted"
        )


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
        if (
            patch != "imports.other_frameworks"
            and module.__name__.startswith("keras.")
            and other_frameworks.backend() != "tensorflow"
        ):
            return
        if place.startswith("tf_keras.") and _is_loading("tensorflow"):
            run_state.current().waiting.append(lambda: put_on(module))
        else:
            put_on(module)

    def put_on(module: ModuleType) -> None:
        importlib.import_module(f"matex_tf.patches.{patch}").install(module)

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
