"""Keras 2's own tests of its trainer, of release 2.21 of tf_keras (see suites.py).

The tests are those of the checkout, the Keras is the installed one, which has in `tf_keras.src` what the checkout has
in `tf_keras`.
"""

from __future__ import annotations

import os

from suite_keras import meet, prepare

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # of the driver too, which starts the ranks

FILES = tuple(
    f"tf_keras/engine/{name}_test.py"
    for name in (
        *("training", "training_arrays", "training_dataset", "training_eager", "training_generator"),
        *("training_integration", "data_adapter", "compile_utils"),
    )
)

HOW = ("eager", "function")

TOGETHER = True

NEEDS = ("absl",)

CHANGES = ((r"\bfrom tf_keras\b", "from tf_keras.src"), (r"\bimport tf_keras\.", "import tf_keras.src."))

#: The folder of the tests is called tf_keras, and must not be taken for the package.
ARGUMENTS = ("-p", "matex_tf.pytest_plugin", "--import-mode=prepend", "--rootdir={checkout}", "-W", "ignore")

_TRAINING = "tf_keras/engine/training_test.py"
_LAYERS = "tf_keras/engine/training_integration_test.py::CoreLayerIntegrationTest"
_SUM_OF_ROWS = (
    *(f"add_metric_in_layer_call_v2_{how}_{of}" for how in HOW for of in ("functional", "sequential", "subclass")),
    *(f"add_metric_in_model_call_v2_{how}" for how in HOW),
    *(f"add_metric_in_model_call_that_returns_dict_v2_{how}" for how in HOW),
    *(f"add_metric_with_tensor_on_model_v2_{how}" for how in HOW),
    *(f"multiple_add_metric_calls_v2_{how}" for how in HOW),
)

#: Tests that do not pass, and why.
EXPECTED = {
    **{
        f"{_TRAINING}::TrainingTest::test_distribution_reduction_method_sum_custom_train_step_v2_{how}": (
            "asks that logs are added up over replicas of tf.distribute, which ranks are not"
        )
        for how in HOW
    },
    **{
        f"{_TRAINING}::TestTrainingWithMetrics::test_{name}": (
            "add_metric is given a sum over the rows of a batch, and a number counts as a mean over them"
        )
        for name in _SUM_OF_ROWS
    },
    **{
        f"{_TRAINING}::TestFunctionTracing::test_{name}_v2_function": (
            "counts the graphs that Keras' own train_function and test_function make"
        )
        for name in ("evaluate_no_cached_data", "no_tracing_between_epoch")
    },
    **{
        f"{_LAYERS}::test_model_loops_LSTM_units_1_kernel_regularizer_l2_dropout_{dropout}_stateful_True_unroll_"
        f"{unrolled}_return_sequences_{sequences}_v2_{how}": "a stateful layer, which is refused"
        for dropout in ("0", "0.5")
        for unrolled in (False, True)
        for sequences in (False, True)
        for how in HOW
    },
}

__all__ = ["ARGUMENTS", "CHANGES", "EXPECTED", "FILES", "NEEDS", "TOGETHER", "meet", "prepare"]
