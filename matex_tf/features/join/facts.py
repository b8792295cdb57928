"""Names of Keras and TensorFlow that ranks which come rest on; see `matex_tf.facts`."""

from __future__ import annotations

from matex_tf.facts.fact import Fact

FACTS = (
    Fact("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer", "_eval_epoch_iterator",
         "a validation is set up anew where a rank has come"),
    Fact("tensorflow.python.ops.resource_variable_ops", "*", "_handle _read_variable_op assign assign_add assign_sub",
         "who reads a variable is seen"),
    Fact("tensorflow.python.framework.op_callbacks", "", "add_op_callback remove_op_callback",
         "who reads a variable is seen"),
)  # fmt: skip
