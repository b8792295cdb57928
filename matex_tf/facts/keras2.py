"""Names of Keras 2: of tf_keras, and of the package keras before 3, whose modules go by the same names."""

from __future__ import annotations

from matex_tf.facts.fact import Fact

FACTS = (
    Fact(
        "tf_keras.src.engine.training", "Model",
        "fit evaluate predict train_on_batch test_on_batch predict_on_batch make_train_function make_test_function "
        "make_predict_function reset_metrics load_weights _validate_and_get_metrics_result "
        "_maybe_load_initial_counters_from_ckpt _train_counter _test_counter _predict_counter _steps_per_execution "
        "compiled_loss compiled_metrics _jit_compile",
        "the loops of a model are shared out among ranks, and its logs are those of all",
    ),
    Fact("tf_keras.src.engine.base_layer", "Layer",
         "_trainable_weights _non_trainable_weights _flatten_layers _metrics", "variables of a layer or a metric"),
    Fact("tf_keras.src.engine.base_preprocessing_layer", "PreprocessingLayer", "adapt", "statistics of all rows"),
    Fact("tf_keras.src.engine.functional", "", "Functional", "what is Keras' own code"),
    Fact("tf_keras.src.engine.input_layer", "", "InputLayer", "what is Keras' own code"),
    Fact("tf_keras.src.engine.sequential", "", "Sequential", "what is Keras' own code"),
    Fact("tf_keras.src.layers.core.lambda_layer", "", "Lambda", "what is code of the script"),
    Fact("tf_keras.src.layers.core.tf_op_layer", "", "TFOpLambda", "what is Keras' own code"),
    Fact("tf_keras.src.utils.losses_utils", "", "compute_weighted_loss reduce_weighted_loss apply_valid_mask",
         "weights of masked losses"),
    Fact("tf_keras.src.losses", "", "_maybe_convert_labels", "labels of hinge losses"),
    Fact("tf_keras.src.losses", "Loss", "__call__ call", "losses of the script's own that look across rows"),
    Fact("tf_keras.src.losses", "LossFunctionWrapper", "fn _fn_kwargs", "the function of a loss"),
    Fact("tf_keras.src.metrics.base_metric", "Metric", "update_state result", "metrics are added up over ranks"),
    Fact("tf_keras.src.metrics.base_metric", "Mean", "update_state", "means are weighted"),
    Fact("tf_keras.src.metrics.base_metric", "MeanMetricWrapper", "update_state _fn _fn_kwargs", "means are weighted"),
    Fact("tf_keras.src.optimizers.optimizer", "Optimizer",
         "apply_gradients build iterations _learning_rate _iterations _variables",
         "gradients are exchanged before they are applied"),
    Fact("tf_keras.src.optimizers.optimizer", "", "_BaseOptimizer", "gradients are exchanged before they are applied"),
    Fact("tf_keras.src.optimizers.legacy.optimizer_v2", "OptimizerV2", "apply_gradients _create_all_weights _hyper",
         "gradients are exchanged before they are applied"),
    Fact("tf_keras.src.optimizers.optimizer_v1", "TFOptimizer", "apply_gradients _create_all_weights _clip_gradients",
         "gradients are exchanged before they are applied"),
    Fact("tf_keras.src.mixed_precision.loss_scale_optimizer", "LossScaleOptimizer|LossScaleOptimizerV3",
         "apply_gradients", "a loss scale sees what is infinite on any rank"),
    Fact("tf_keras.src.backend", "", "_SEED_GENERATOR", "what seeds of layers are drawn from"),
    Fact("tf_keras.src.backend", "*", "_keras_mask", "the mask on a tensor"),
    Fact(
        "tf_keras.src.callbacks", "CallbackList",
        "on_train_begin on_train_end on_epoch_begin on_epoch_end on_train_batch_begin on_train_batch_end "
        "on_test_begin on_test_end on_test_batch_begin on_test_batch_end on_predict_batch_end callbacks params",
        "what callbacks hear is of all rows, and what they decide holds for all ranks",
    ),
    Fact("tf_keras.src.callbacks", "History", "on_epoch_end history", "how many ranks there were"),
    Fact("tf_keras.src.callbacks", "ProgbarLogger", "set_params on_train_batch_end", "one bar"),
    Fact("tf_keras.src.callbacks", "ModelCheckpoint", "_save_model filepath", "rank 0 writes"),
    Fact("tf_keras.src.callbacks", "CSVLogger", "on_train_begin csv_file filename", "rank 0 writes"),
    Fact("tf_keras.src.callbacks", "TensorBoard", "set_model log_dir embeddings_freq", "rank 0 writes"),
    Fact("tf_keras.src.callbacks", "RemoteMonitor", "on_epoch_end", "rank 0 sends"),
    Fact("tf_keras.src.callbacks", "BackupAndRestore", "backup_dir", "rank 0 writes"),
    Fact("tf_keras.src.distribute.worker_training_state", "WorkerTrainingState", "back_up delete_backup _model",
         "rank 0 writes"),
    Fact("tf_keras.src.saving.saving_api", "", "save_model load_model save_weights load_weights", "rank 0 writes"),
)  # fmt: skip
