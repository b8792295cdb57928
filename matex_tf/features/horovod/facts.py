"""Names of Keras and TensorFlow that Horovod's names rest on; see `matex_tf.facts`."""

from __future__ import annotations

from matex_tf.facts.fact import Fact

FACTS = (
    Fact("keras.src.optimizers.loss_scale_optimizer", "LossScaleOptimizer", "inner_optimizer", "loss scales"),
    Fact("keras.src.legacy.preprocessing.image", "", "ImageDataGenerator", "served to scripts for Horovod"),
    Fact("tensorflow.python.eager.context", "Context", "call_function", "how functions are called"),
    Fact("tensorflow.python.framework.ops", "Graph", "_get_control_flow_context",
         "collectives in graphs of TensorFlow 1"),
    Fact("tensorflow.python.framework.ops", "Operation", "_set_attr _get_control_flow_context",
         "names of ops that exchange"),
    Fact("tensorflow.python.ops.while_v2", "", "_build_while_op", "loops in a step"),
    Fact("tensorflow.python.ops.control_flow_ops", "WhileContext", "_parallel_iterations outer_context loop_enters",
         "loops of TensorFlow 1"),
    Fact("tensorflow.python.client.session", "BaseSession", "__init__ _do_call _do_run",
         "errors of ranks in a session"),
)  # fmt: skip
