"""Names of TensorFlow. What `tensorflow` itself has is public; modules of `tensorflow.python` are not."""

from __future__ import annotations

from matex_tf.facts.fact import Fact

_OPS = "tensorflow.python.data.ops"

#: Pipelines of tf.data. Where one of these names is gone every rank does all the work of the pipeline.
DATA = (
    Fact("tensorflow", "data.Dataset", "__iter__ shuffle repeat from_generator batch map save cache padded_batch take "
         "skip shard prefetch with_options enumerate filter", "the work of a pipeline is divided"),
    Fact(f"{_OPS}.dataset_ops", "DatasetV2", "_variant_tensor _inputs _functions", "what a pipeline is made of"),
    Fact(f"{_OPS}.dataset_ops", "UnaryDataset", "_input_dataset", "what a pipeline is made of"),
    Fact(f"{_OPS}.structured_function", "StructuredFunctionWrapper", "__init__ function output_structure",
         "functions of a pipeline draw no numbers by row"),
    Fact(f"{_OPS}.batch_op", "_BatchDataset|_ParallelBatchDataset", "_batch_size _drop_remainder",
         "what a pipeline is made of"),
    Fact(f"{_OPS}.padded_batch_op", "_PaddedBatchDataset",
         "_padded_shapes _padding_values _batch_size _drop_remainder", "what a pipeline is made of"),
    Fact(f"{_OPS}.ragged_batch_op", "_DenseToRaggedDataset", "_mapped_dataset", "what a pipeline is made of",
         optional=True),
    Fact(f"{_OPS}.filter_op", "_FilterDataset", "_predicate", "what a pipeline is made of"),
    Fact(f"{_OPS}.flat_map_op", "_FlatMapDataset", "_map_func", "what a pipeline is made of"),
    Fact(f"{_OPS}.interleave_op", "_InterleaveDataset|_ParallelInterleaveDataset", "_map_func",
         "what a pipeline is made of"),
    Fact(f"{_OPS}.map_op", "_MapDataset", "_map_func", "what a pipeline is made of"),
    Fact(f"{_OPS}.map_op", "_ParallelMapDataset", "_map_func _num_parallel_calls _deterministic",
         "what a pipeline is made of"),
    Fact(f"{_OPS}.prefetch_op", "_PrefetchDataset", "_buffer_size", "what a pipeline reads ahead"),
    Fact(f"{_OPS}.range_op", "_RangeDataset", "_step", "what a pipeline is made of"),
    Fact(f"{_OPS}.shuffle_op", "_ShuffleDataset", "_seed", "what a pipeline is made of"),
    Fact(f"{_OPS}.from_tensors_op", "_TensorDataset", "_tensors", "what a pipeline is made of"),
    Fact(f"{_OPS}.from_tensor_slices_op", "_TensorSliceDataset", "_tensors", "what a pipeline is made of"),
    Fact(f"{_OPS}.zip_op", "_ZipDataset", "_datasets", "what a pipeline is made of"),
    Fact(f"{_OPS}.window_op", "_WindowDataset", "_drop_remainder", "what a pipeline is made of"),
    Fact(f"{_OPS}.readers", "TFRecordDatasetV2", "_impl", "some rows of a pipeline, to compare"),
    Fact("tensorflow.python.data.util.structure", "", "get_flat_tensor_specs", "shapes of elements"),
    Fact("tensorflow.python.data.experimental.ops.readers", "",
         "CsvDataset core_readers make_csv_dataset_v2 _maybe_shuffle_and_repeat _get_file_names",
         "each rank parses its lines of CSV"),
    Fact("tensorflow.python.data.experimental.ops.readers", "CsvDatasetV2",
         "_filenames _compression_type _record_defaults _header _field_delim _use_quote_delim _na_value _select_cols "
         "_exclude_cols", "each rank parses its lines of CSV", optional=True),
    Fact("tensorflow.python.ops.gen_dataset_ops", "", "shuffle_dataset_v3", "orders that ranks draw alike"),
    Fact(f"{_OPS}.iterator_ops", "OwnedIterator", "_next_internal get_next_as_optional _type_spec _create_iterator",
         "steps of loops get a rank's rows"),
    Fact(f"{_OPS}.iterator_ops", "OwnedIterator",
         "_iterator_resource _flat_output_types _flat_output_shapes _element_spec _dataset",
         "steps of loops get a rank's rows", optional=True),
    Fact(f"{_OPS}.iterator_ops", "IteratorSpec", "_to_components _from_components",
         "iterators that are arguments of functions"),
    Fact("tensorflow.python.autograph.operators.control_flow", "",
         "for_loop_registry for_loop_registry._registry", "loops over datasets in graphs"),
    Fact("tensorflow.python.autograph.utils.type_registry", "TypeRegistry", "_registry",
         "loops over datasets in graphs"),
)  # fmt: skip

#: Functions, graphs and steps.
GRAPHS = (
    Fact("tensorflow", "", "function GradientTape Tensor.OVERLOADABLE_OPERATORS Variable autograph nest",
         "loops of the script's own"),
    Fact("tensorflow", "GradientTape", "gradient", "gradients of loops of the script's own"),
    Fact("tensorflow", "autograph.experimental", "do_not_convert", "functions of a pipeline"),
    Fact("tensorflow.python.eager.backprop", "GradientTape", "_persistent", "tapes that are asked again"),
    Fact("tensorflow.python.eager.record", "", "could_possibly_record", "tapes that record"),
    Fact("tensorflow.python.eager.context", "",
         "context context_safe global_seed FunctionCallOptions", "how functions are called"),
    Fact("tensorflow.python.eager.context", "Context", "config _rng _seed function_call_options",
         "how functions are called"),
    Fact("tensorflow.python.eager.execute", "", "quick_execute", "ops that are tried on numbers of rows"),
    Fact("tensorflow.python.eager.polymorphic_function.polymorphic_function", "Function",
         "__call__ _jit_compile _created_variables", "compiled functions of the script"),
    Fact("tensorflow.python.eager.polymorphic_function.polymorphic_function", "Function",
         "_function_type _default_values _is_pure _variable_creation_config", "compiled functions of the script",
         since="2.16"),
    Fact("tensorflow.python.eager.polymorphic_function.function_type_utils", "",
         "canonicalize_function_inputs", "arguments of compiled functions", since="2.16"),
    Fact("tensorflow.python.eager.polymorphic_function.function_context", "", "make_function_context",
         "a function is traced as in a world of one rank"),
    Fact("tensorflow.python.eager.polymorphic_function.concrete_function", "ConcreteFunction",
         "_call_flat function_type variables captured_inputs graph", "compiled functions are called", since="2.16"),
    Fact("tensorflow.python.framework.func_graph", "", "func_graph_from_py_func FuncGraph", "steps are traced"),
    Fact("tensorflow.python.framework.func_graph", "FuncGraph", "capture outer_graph _create_op_internal",
         "steps are rebuilt for rows"),
    Fact("tensorflow.python.framework.ops", "Graph",
         "_get_function _add_function_recursive _functions", "steps are rebuilt for rows"),
    Fact("tensorflow.python.framework.ops", "Graph",
         "_c_graph _control_dependencies_for_inputs _record_op_seen_by_control_dependencies _apply_device_functions "
         "_colocation_stack", "ops of a step are made once more"),
    Fact("tensorflow.python.framework.ops", "Operation", "_from_c_op", "ops of a step are made once more",
         optional=True),
    Fact("tensorflow.python.framework.ops", "", "_reconstruct_sequence_inputs", "ops of a step are made once more"),
    Fact("tensorflow.python.framework.ops", "*", "_c_op _as_tf_output", "ops of a step are made once more"),
    Fact("tensorflow.python.client", "", "pywrap_tf_session", "ops of a step are made once more"),
    Fact("tensorflow.python.framework.ops", "", "get_default_graph", "steps are rebuilt for rows"),
    Fact("tensorflow.python.framework.ops", "_EagerTensorBase", "_numpy __tf_tensor__",
         "a printed loss is that of all ranks"),
    Fact("tensorflow.python.framework.function_def_to_graph", "", "function_def_to_graph", "functions in a step"),
    Fact("tensorflow.python.framework.op_def_registry", "", "get", "whether an op has a state"),
    Fact("tensorflow.python.framework.auto_control_deps", "", "op_is_stateful", "the order of ops"),
    Fact("tensorflow.python.framework.tensor_util", "", "MakeNdarray constant_value_as_shape constant_value",
         "what is known of a tensor while a step is traced"),
    Fact("tensorflow.python.framework.random_seed", "", "_graph_to_seed_dict", "seeds of ops"),
    Fact("tensorflow.python.ops.handle_data_util", "*", "copy_handle_data get_resource_handle_data _handle_data",
         "variables in a step"),
    Fact("tensorflow.python.ops.resource_variable_ops", "", "ResourceVariable", "variables in a step"),
    Fact("tensorflow.python.ops.resource_variable_ops", "", "UninitializedVariable", "variables without a value yet"),
    Fact("tensorflow.python.ops.while_v2", "", "_get_graph", "loops in a step"),
    Fact("tensorflow.python.ops.cond_v2", "", "get_func_graphs", "branches in a step"),
    Fact("tensorflow.python.ops.array_ops", "", "unique", "indices that are distinct over ranks"),
    Fact(
        "tensorflow.python.autograph.core.ag_ctx", "", "ControlStatusCtx Status control_status_ctx",
        "functions that are converted, as without a wrapper",
    ),
    Fact("tensorflow.python.autograph.pyct.loader", "", "load_source", "files that AutoGraph writes"),
    Fact("tensorflow.python.autograph.impl.api", "*", "ag_source_map", "code that AutoGraph has converted"),
    Fact("tensorflow.python.autograph.impl.api", "", "autograph_artifact", "wrappers that AutoGraph leaves alone"),
)  # fmt: skip

#: Random numbers.
DRAWS = (
    Fact("tensorflow", "random", "set_seed Generator Generator.from_non_deterministic_state", "seeds of the job"),
    Fact("tensorflow.python.ops.gen_random_ops", "",
         "random_uniform random_standard_normal truncated_normal random_uniform_int random_poisson_v2 random_gamma "
         "parameterized_truncated_normal multinomial random_shuffle", "draws by row"),
    Fact("tensorflow.python.ops.gen_stateful_random_ops", "", "stateful_random_binomial", "draws by row"),
    Fact("tensorflow.python.ops.gen_stateless_random_ops", "", "stateless_multinomial", "draws by row"),
    Fact("tensorflow.python.ops.gen_stateless_random_ops_v2", "",
         "stateless_random_uniform_v2 stateless_random_normal_v2 stateless_truncated_normal_v2 "
         "stateless_random_uniform_int_v2 stateless_random_get_key_counter stateless_shuffle", "draws by row"),
    Fact("tensorflow.python.ops.stateful_random_ops", "Generator", "__init__ _prepare_key_counter", "draws by row"),
)  # fmt: skip

#: Files, and what runs ranks of its own.
REST = (
    Fact("tensorflow", "train", "Checkpoint Checkpoint.__init__ Checkpoint._write CheckpointManager._record_state",
         "rank 0 writes"),
    Fact("tensorflow", "compat.v1.train.Checkpoint", "_write", "rank 0 writes"),
    Fact("tensorflow", "io", "gfile.GFile TFRecordWriter", "what the script writes is written once"),
    Fact("tensorflow.python.checkpoint.checkpoint_management", "", "_delete_file_if_exists", "rank 0 writes"),
    Fact("tensorflow.python.checkpoint.checkpoint_management", "CheckpointManager",
         "_record_state _record_and_sweep_state", "rank 0 writes"),
    Fact("tensorflow.python.saved_model.save", "", "save", "rank 0 writes"),
    Fact("tensorflow.python.ops.summary_ops_v2", "", "create_file_writer_v2", "rank 0 writes"),
    Fact("tensorflow", "distribute", "get_strategy MirroredStrategy MultiWorkerMirroredStrategy",
         "strategies of TensorFlow are one rank each"),
    Fact("tensorflow.python.distribute.collective_all_reduce_strategy", "CollectiveAllReduceExtended",
         "_cluster_resolver", "strategies of TensorFlow are one rank each"),
    Fact("tensorflow", "nn", "compute_average_loss", "losses of loops of the script's own"),
)  # fmt: skip

FACTS = (*DATA, *GRAPHS, *DRAWS, *REST)
