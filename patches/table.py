"""Which file patches which module: a new patch is one line here."""

from __future__ import annotations

from matex_tf.features import registry

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
    ("tensorflow", "sources.calls"),
    ("tensorflow", "sources.source_sharding"),
    ("tensorflow", "sources.shuffle_orders"),
    ("tensorflow", "division.shuffle_first"),
    ("tensorflow", "division.epoch_draws"),
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
    ("keras.src.backend.tensorflow.trainer", "fit.trainer"),
    ("keras.src.backend.tensorflow.trainer", "fit.epochs.epoch_data"),
    ("keras.src.backend.tensorflow.trainer", "data.epoch_orders"),
    ("keras.src.backend.tensorflow.trainer", "loops.keras_loops"),
    ("keras.src.optimizers.base_optimizer", "keras.optimizer"),
    ("keras.src.optimizers.base_optimizer", "loops.gradient_updates"),
    ("keras.src.optimizers.loss_scale_optimizer", "keras.loss_scaling"),
    ("keras.src.metrics.metric", "loops.metric_results"),
    ("keras.src.metrics.reduction_metrics", "keras.metrics"),
    ("keras.src.losses.loss", "keras.losses"),
    ("keras.src.losses.loss", "across_rows.own_losses"),
    ("keras.src.trainers.compile_utils", "keras.output_losses"),
    ("keras.src.losses.losses", "across_rows.keras_losses"),
    ("keras.src.layers.layer", "keras.activity_regularizer"),
    ("keras.src.layers.layer", "random.not_by_row"),
    ("keras.src.layers.layer", "fit.step.one_rank_shapes"),
    ("keras.src.layers.layer", "shards.pending"),
    ("keras.src.backend.tensorflow.nn", "keras.batch_norm"),
    ("keras.src.backend.tensorflow.ops.nn", "keras.batch_norm"),
    ("keras.src.layers.normalization.batch_normalization", "keras.batch_norm"),
    ("keras.src.backend.tensorflow.distribution_lib", "keras.distribution"),
    ("keras.src.distribution.distribution_lib", "keras.distribution"),
    ("keras.src.backend.common.variables", "keras.distribution"),
    ("keras.src.callbacks.callback_list", "fit.batch_logs"),
    ("keras.src.callbacks.callback_list", "fit.stopping"),
    ("keras.src.callbacks.callback_list", "recovery.resume_fit"),
    ("keras.src.callbacks.callback_list", "saving.agreed_paths"),
    ("keras.src.callbacks.callback_list", "steps.progress"),
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
    ("os", "saving.mkdir"),
    ("keras.src.layers.preprocessing.normalization", "fit.adapt"),
    ("keras.src.layers.preprocessing.discretization", "fit.adapt"),
    ("keras.src.layers.preprocessing.index_lookup", "fit.adapt"),
    ("keras.src.layers.preprocessing.text_vectorization", "fit.adapt"),
    ("keras.src.backend", "imports.other_frameworks"),
    ("keras.src.optimizers.base_optimizer", "imports.other_frameworks"),
    ("tf_keras.src.engine.base_preprocessing_layer", "fit.adapt"),
    ("tf_keras.src.utils.losses_utils", "keras.losses"),
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
    ("tf_keras.src.callbacks", "steps.progress"),
    ("tf_keras.src.distribute.worker_training_state", "saving.checkpoint_callbacks"),
    ("tf_keras.src.saving.saving_api", "saving.model_files"),
    ("tf_keras.src.saving.saving_api", "saving.agreed_paths"),
    ("tf_keras.src.engine.training", "saving.agreed_paths"),
    ("socket", "imports.server_ports"),
    ("multiprocessing.shared_memory", "imports.shared_names"),
    ("wandb", "imports.trackers"),
    ("clearml", "imports.trackers"),
    ("comet_ml", "imports.trackers"),
    ("neptune", "imports.trackers"),
    ("mlflow", "imports.trackers"),
    ("torch", "imports.other_frameworks"),
    ("jax", "imports.other_frameworks"),
)

#: The patches of modules of Keras that serve it with the backends of features too.
ANY_BACKEND = (
    "imports.other_frameworks",
    "fit.stopping",
    "steps.progress",
    "saving.agreed_paths",
    "saving.checkpoint_callbacks",
    "saving.downloads",
    "saving.log_callbacks",
    "saving.model_files",
)

#: Modules by which libraries keep what they open by its path.
_STORES = (
    *("dbm", "diskcache", "keras_tuner", "lmdb", "netCDF4", "optuna.storages.journal", "tables"),
    *("zarr.api.synchronous", "zarr.storage"),
)

#: The same for what goes on writing when the call has returned.
FILES = (
    *((module, "files.handles.opened") for module in ("builtins", "pathlib", "gzip", "bz2", "lzma")),
    *((module, "files.handles.archives") for module in ("zipfile", "tarfile")),
    ("sqlite3", "files.handles.databases"),
    ("h5py", "files.handles.hdf5"),
    *((module, "files.handles.processes") for module in ("os", "subprocess")),
    ("os", "files.handles.descriptors"),
    ("fcntl", "files.handles.locks"),
    *((module, "files.handles.stores") for module in _STORES),
    ("numpy", "files.handles.memory_maps"),
    *((module, "files.handles.logs") for module in ("logging", "logging.handlers")),
    ("tensorflow", "files.handles.records"),
)

#: What happens around each step of a model: classes of `steps.step_part.StepPart`, in their order. A dot: in here.
STEP_PARTS = [
    ".keras.metrics:OwnStates",
    ".recovery.resume_fit:Replay",
    ".keras.weights:Replicas",
    ".fit.step.first_step:FirstStep",
    ".fit.step.exchanging:Exchanging",
    ".fit.step.ghosts:Ghosts",
    ".fit.small_calls:Timing",
    ".steps.progress:Metered",
]


def any_backend() -> list[str]:
    """`ANY_BACKEND`, then what features have of the kind."""
    return [*ANY_BACKEND, *(one for feature in registry.found().values() for one in feature.any_backend)]


def serves(patch: str, module: str, backend: str) -> bool:
    """Whether a `patch` of a `module`, as in the tables, is for Keras on a `backend`: a feature may patch that too."""
    if backend == "tensorflow" or patch == "imports.other_frameworks":
        return True
    return backend in registry.backends() and (
        patch in any_backend() or module.startswith(f"keras.src.backend.{backend}.")
    )


def of_features() -> list[tuple[str, str]]:
    """The rows of features, with the whole name of each of their modules; they are put on after those of the core."""
    return [row for feature in registry.found().values() for row in feature.patches]


def recording() -> list[tuple[str, str]]:
    """The rows of features for scripts that are recorded."""
    return [row for feature in registry.found().values() for row in feature.recording]


def step_parts() -> list[str]:
    """The classes of `STEP_PARTS`, then those of features."""
    return [*STEP_PARTS, *(place for feature in registry.found().values() for place in feature.step_parts)]
