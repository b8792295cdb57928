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

TOGETHER = True

NEEDS = ("absl",)

CHANGES = ((r"\bfrom tf_keras\b", "from tf_keras.src"), (r"\bimport tf_keras\.", "import tf_keras.src."))

#: The folder of the tests is called tf_keras, and must not be taken for the package.
ARGUMENTS = ("-p", "matex_tf.pytest_plugin", "--import-mode=prepend", "--rootdir={checkout}", "-W", "ignore")

_SUM = "test_distribution_reduction_method_sum_custom_train_step"

#: Tests that do not pass, and why.
EXPECTED = {
    f"tf_keras/engine/training_test.py::TrainingTest::{_SUM}_v2_{how}": (
        "asks that logs are added up over replicas of tf.distribute, which ranks are not"
    )
    for how in ("eager", "function")
}

__all__ = ["ARGUMENTS", "CHANGES", "EXPECTED", "FILES", "NEEDS", "TOGETHER", "meet", "prepare"]
