"""Names of Keras and TensorFlow that rows which wait rest on; see `matex_tf.facts`."""

from __future__ import annotations

from matex_tf.facts.fact import Fact

FACTS = (
    Fact("keras.src.trainers.compile_utils", "CompileLoss", "_flat_losses|flat_losses", "losses of single rows"),
    Fact("keras.src.optimizers.base_optimizer", "BaseOptimizer",
         "_get_current_learning_rate _learning_rate _variables", "the learning rate stays that of the whole epoch"),
    Fact("keras.src.optimizers.base_optimizer", "BaseOptimizer", "_iterations", "the learning rate stays that of the "
         "whole epoch", since="3.5"),
    Fact("tensorflow.python.data.ops.shuffle_op", "_ShuffleDataset", "_buffer_size _seed2 _reshuffle_each_iteration",
         "orders of rows"),
)  # fmt: skip
