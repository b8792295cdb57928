"""Names of Keras 3."""

from __future__ import annotations

from matex_tf.facts.fact import Fact

_ADAPTERS = "keras.src.trainers.data_adapters"
_LAYERS = "keras.src.layers"
_PREPROCESSING = "keras.src.layers.preprocessing"

#: The loops, the data and the steps of a model.
TRAINING = (
    Fact(
        "keras.src.backend.tensorflow.trainer", "Trainer|TensorFlowTrainer",
        "fit evaluate predict train_on_batch test_on_batch predict_on_batch make_train_function make_test_function "
        "make_predict_function reset_metrics _get_metrics_result_or_logs",
        "the loops of a model are shared out among ranks, and its logs are those of all",
    ),
    Fact("keras.src.backend.tensorflow.trainer", "TFEpochIterator",
         "__init__ _distributed_dataset _num_batches", "the data of an epoch are cut for ranks"),
    Fact("keras.src.backend.tensorflow.trainer", "TFEpochIterator", "reset", "epochs are as long on every rank",
         since="3.7"),
    Fact("keras.src.trainers.epoch_iterator", "EpochIterator",
         "_enumerate_iterator _get_iterator _current_iterator", "an iterator that nobody uses is left out",
         since="3.7", optional=True),
    Fact("keras.src.trainers.trainer", "BaseTrainer|Trainer",
         "compile _symbolic_build _initial_epoch compute_loss", "steps are built, resumed and checked"),
    Fact("keras.src.trainers.compile_utils", "CompileLoss", "call", "the loss of the rows of a rank"),
    Fact(f"{_ADAPTERS}.array_data_adapter", "ArrayDataAdapter",
         "get_tf_dataset _inputs _num_samples _batch_size _partial_batch_size _size _shuffle",
         "each rank gathers its rows of arrays"),
    Fact(f"{_ADAPTERS}.array_slicing", "", "convert_to_sliceable", "arrays as Keras gives them to tf.data"),
    Fact(f"{_ADAPTERS}.py_dataset_adapter", "PyDatasetAdapter",
         "get_tf_dataset py_dataset shuffle enqueuer _output_signature _standardize_batch _get_iterator on_epoch_end",
         "batches of a PyDataset are made in turn", since="3.4"),
    Fact(f"{_ADAPTERS}.py_dataset_adapter", "PyDatasetAdapter", "_epoch", "the order of a shuffled PyDataset",
         since="3.16", optional=True),
    Fact(f"{_ADAPTERS}.generator_data_adapter", "GeneratorDataAdapter",
         "__init__ get_tf_dataset generator _output_signature", "one rank of a node runs a generator"),
    Fact(f"{_ADAPTERS}.generator_data_adapter", "GeneratorDataAdapter", "_first_batches",
         "the batches that Keras has looked at"),
    Fact(f"{_ADAPTERS}.data_adapter_utils", "", "get_tensor_spec", "shapes of batches"),
    Fact(f"{_ADAPTERS}.data_adapter_utils", "", "NUM_BATCHES_FOR_TENSOR_SPEC", "batches that Keras looks at",
         since="3.4"),
    Fact("keras.src.tree", "", "map_structure lists_to_tuples", "structures of batches"),
    Fact("keras.src.version", "", "__version__", "the version of Keras"),
)  # fmt: skip

#: Losses, metrics and optimizers.
UPDATES = (
    Fact("keras.src.losses.loss", "", "reduce_values apply_mask reduce_weighted_values", "weights of masked losses"),
    Fact("keras.src.losses.loss", "Loss", "__call__ call", "losses of the script's own that look across rows"),
    Fact("keras.src.losses.losses", "LossFunctionWrapper", "fn _fn_kwargs", "the function of a loss"),
    Fact("keras.src.losses.losses", "",
         "convert_binary_labels_to_hinge cosine_similarity categorical_crossentropy categorical_focal_crossentropy "
         "sparse_categorical_crossentropy binary_crossentropy binary_focal_crossentropy dice tversky",
         "losses along an axis of rows"),
    Fact("keras.src.losses.losses", "", "circle", "a loss that compares rows", since="3.7", optional=True),
    Fact("keras.src.metrics.metric", "Metric", "update_state result reset_state _variables _metrics",
         "metrics are added up over ranks"),
    Fact("keras.src.metrics.reduction_metrics", "MeanMetricWrapper", "_fn _fn_kwargs", "the function of a metric"),
    Fact("keras.src.metrics.reduction_metrics", "Mean", "update_state", "means are weighted"),
    Fact("keras.src.metrics.reduction_metrics", "Sum", "update_state", "sums are weighted"),
    Fact(
        "keras.src.optimizers.base_optimizer", "BaseOptimizer",
        "__init__ apply build add_variable_from_reference variables _clip_gradients _trainable_variables",
        "gradients are exchanged before they are applied, and slots follow their variables",
    ),
    Fact("keras.src.optimizers.base_optimizer", "BaseOptimizer",
         "_backend_apply_gradients _accumulated_gradients", "gradient accumulation", since="3.5"),
    Fact("keras.src.optimizers.loss_scale_optimizer", "LossScaleOptimizer",
         "apply dynamic_scale initial_scale", "a loss scale sees what is infinite on any rank"),
    Fact("keras.src.optimizers.schedules.learning_rate_schedule", "", "LearningRateSchedule", "what is a schedule"),
)  # fmt: skip

#: Layers and models.
LAYERS = (
    Fact(f"{_LAYERS}.layer", "Layer",
         "__call__ add_weight _maybe_build _flatten_layers _trainable_variables _metrics activity_regularizer",
         "layers are built on the shapes of one rank"),
    Fact("keras.src.ops.node", "*", "arguments", "what an op of Keras was called with"),
    Fact("keras.src.ops.nn", "", "", "the names of ops"),
    Fact("keras.src.models.model", "Model", "save_weights load_weights export", "rank 0 writes"),
    Fact("keras.src.backend.common.variables", "*", "_shape _initialize", "variables that change their shape"),
    Fact("keras.src.backend.common.variables", "Variable|KerasVariable", "__init__",
         "variables keep the layout of keras.distribution"),
    Fact("keras.src.backend.common.variables", "*", "_layout", "the layout of a variable", optional=True),
    Fact("keras.src.backend.tensorflow.distribution_lib", "", "list_devices", "the ranks are the devices"),
    Fact("keras.src.distribution.distribution_lib", "", "set_distribution list_devices", "the ranks are the devices"),
    Fact("keras.src.backend.common.masking", "*", "_keras_mask get_keras_mask", "the mask on a tensor", since="3.8"),
    Fact("keras.src.backend.common.global_state", "", "GLOBAL_STATE_TRACKER get_global_attribute",
         "counters of names, and Keras' generator"),
    Fact("keras.src.backend.tensorflow.nn|keras.src.backend.tensorflow.ops.nn", "", "_compute_moments_sync",
         "BatchNormalization(synchronized=True) over all rows"),
    Fact("keras.src.backend.tensorflow.random", "", "shuffle", "a shuffle of rows"),
    Fact("keras.src.backend", "", "epsilon", "what Keras computes with"),
    Fact("keras.src.backend.config", "", "backend", "what Keras computes with"),
    Fact("keras.src.random.seed_generator", "", "global_seed_generator", "Keras' generator"),
    Fact("keras.src.random.seed_generator", "*", "seed_generator_state", "states of generators, by their name"),
    Fact(f"{_LAYERS}.normalization.batch_normalization", "BatchNormalization", "__init__ _moments _reduction_axes",
         "mean and variance over all rows"),
    Fact(f"{_PREPROCESSING}.normalization", "Normalization", "adapt", "statistics of all rows"),
    Fact(f"{_PREPROCESSING}.discretization", "Discretization", "adapt", "statistics of all rows"),
    Fact(f"{_PREPROCESSING}.index_lookup", "IndexLookup", "adapt", "statistics of all rows"),
    Fact(f"{_PREPROCESSING}.text_vectorization", "TextVectorization", "adapt", "statistics of all rows"),
    Fact(f"{_PREPROCESSING}.image_preprocessing.mix_up", "MixUp", "call", "rows that are mixed", since="3.8"),
    Fact(f"{_PREPROCESSING}.image_preprocessing.cut_mix", "CutMix", "call", "rows that are mixed", since="3.9"),
    Fact(f"{_PREPROCESSING}.image_preprocessing.mosaic", "Mosaic", "call", "rows that are mixed", since="3.16"),
)  # fmt: skip

#: Callbacks and files.
FILES = (
    Fact(
        "keras.src.callbacks.callback_list", "CallbackList",
        "on_train_begin on_train_end on_epoch_begin on_epoch_end on_train_batch_begin on_train_batch_end "
        "on_test_begin on_test_end on_test_batch_begin on_test_batch_end on_predict_batch_end callbacks params",
        "what callbacks hear is of all rows, and what they decide holds for all ranks",
    ),
    Fact("keras.src.utils.python_utils", "*", "_is_default", "methods that a callback does not override"),
    Fact("keras.src.callbacks.history", "History", "on_epoch_end history", "how many ranks there were"),
    Fact("keras.src.callbacks.progbar_logger", "ProgbarLogger", "set_params on_train_batch_end", "one bar"),
    Fact("keras.src.callbacks.model_checkpoint", "ModelCheckpoint", "_save_model filepath", "rank 0 writes"),
    Fact("keras.src.callbacks.backup_and_restore", "BackupAndRestore", "_save_model on_train_end backup_dir",
         "rank 0 writes"),
    Fact("keras.src.callbacks.backup_and_restore", "BackupAndRestore",
         "_weights_path _prev_weights_path _training_metadata_path _prev_training_metadata_path",
         "paths that only one rank knows", since="3.7", optional=True),
    Fact("keras.src.callbacks.orbax_checkpoint", "OrbaxCheckpoint",
         "_is_improvement _save_checkpoint on_train_end wait_until_finished directory", "rank 0 writes", since="3.13"),
    Fact("keras.src.callbacks.csv_logger", "CSVLogger", "on_train_begin csv_file filename", "rank 0 writes"),
    Fact("keras.src.callbacks.tensorboard", "TensorBoard", "set_model log_dir embeddings_freq", "rank 0 writes"),
    Fact("keras.src.callbacks.remote_monitor", "RemoteMonitor", "on_epoch_end", "rank 0 sends"),
    Fact("keras.src.callbacks.callback", "Callback", "_model", "the model of a callback"),
    Fact("keras.src.saving.saving_api", "", "save_model load_model save_weights load_weights", "rank 0 writes"),
    Fact("keras.src.utils.file_utils", "", "get_file", "one rank of a node downloads"),
    Fact("keras.src.utils.image_utils", "", "save_img", "what the script writes is written once"),
    Fact("keras.src.utils.model_visualization", "", "plot_model", "what the script writes is written once"),
)  # fmt: skip

FACTS = (*TRAINING, *UPDATES, *LAYERS, *FILES)
