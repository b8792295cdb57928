"""Names of Keras 2 that its fit loop and layers rest on; those that other Kerases share are in `matex_tf.facts`."""

from __future__ import annotations

from matex_tf.facts.fact import Fact

FACTS = (
    Fact("tf_keras.src.engine.data_adapter", "DataHandler",
         "__init__ _configure_dataset_and_inferred_steps enumerate_epochs _adapter _dataset _inferred_steps"
         " _initial_epoch",
         "the data of an epoch are cut for ranks"),
    Fact("tf_keras.src.engine.data_adapter", "TensorLikeDataAdapter",
         "slice_inputs _batch_size _partial_batch_size _size _shuffle",
         "each rank gathers its rows of arrays"),
    Fact("tf_keras.src.engine.data_adapter", "", "_make_class_weight_map_fn", "weights of classes"),
    Fact("tf_keras.src.layers.normalization.batch_normalization", "BatchNormalizationBase",
         "_calculate_mean_and_var _fused_batch_norm _assign_moving_average _param_dtype",
         "mean and variance over all rows"),
    Fact("tf_keras.src.utils.data_utils", "OrderedEnqueuer", "get sequence _wait_queue",
         "batches of a Sequence are made in turn"),
)  # fmt: skip
