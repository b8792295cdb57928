"""Names of Keras that models whose neurons come and go rest on; see `matex_tf.facts`."""

from __future__ import annotations

from matex_tf.facts.fact import Fact

FACTS = (
    Fact("keras.src.trainers.data_adapters.data_adapter_utils", "", "unpack_x_y_sample_weight", "the parts of a batch"),
    Fact("keras.src.optimizers.base_optimizer", "BaseOptimizer",
         "_model_variables_moving_average _trainable_variables_indices _var_key", "slots follow their variables"),
    Fact("keras.src.optimizers.optimizer", "", "Optimizer", "what is an optimizer"),
    Fact("keras.src.optimizers.adafactor", "Adafactor", "_r _c", "slots that lack an axis"),
    Fact("tf_keras.src.optimizers.optimizer", "Optimizer", "_model_variables_moving_average",
         "slots follow their variables"),
    Fact("keras.src.ops.operation", "Operation", "_inbound_nodes _outbound_nodes", "the graph of layers"),
    Fact("keras.src.ops.function", "Function", "_nodes_by_depth", "the graph of layers"),
    Fact("keras.src.ops.node", "*", "_keras_history", "which layer has made a tensor"),
    Fact("keras.src.ops.numpy", "", "Add", "the names of ops"),
    Fact("keras.src.models.sequential", "Sequential", "_functional", "the graph of layers"),
    Fact("keras.src.models.functional", "", "Functional", "what is a functional model"),
    Fact("keras.src.backend.common.keras_tensor", "KerasTensor", "_shape", "shapes of tensors", since="3.6"),
    Fact("keras.src.layers.layer", "Layer", "_build_shapes_dict", "shapes that a layer was built for"),
    Fact("keras.src.layers.core.input_layer", "InputLayer", "_batch_shape", "shapes of inputs", since="3.6"),
    Fact("keras.src.layers.core.dense", "Dense", "_kernel", "channels of layers"),
    Fact("keras.src.layers.core.einsum_dense", "EinsumDense", "_kernel", "channels of layers"),
    Fact("keras.src.layers.core.embedding", "Embedding", "_embeddings", "channels of layers"),
    Fact("keras.src.layers.convolutional.base_conv", "BaseConv", "_kernel", "channels of layers"),
    Fact("keras.src.layers.attention.multi_head_attention", "MultiHeadAttention",
         "_num_heads _output_shape _query_dense _key_dense _value_dense _output_dense", "channels of attention"),
    Fact("keras.src.layers.attention.multi_head_attention", "MultiHeadAttention", "_gate_dense",
         "channels of attention", since="3.14", optional=True),
)  # fmt: skip
