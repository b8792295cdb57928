"""Tests of trainers, callbacks, optimizers, metrics, models and files that Keras 3.15 has itself (see suites.py).

The tests are those of the checkout, the Keras is the installed one.
"""

from __future__ import annotations

from pathlib import Path

_FOLDERS = {
    "trainers": "trainer compile_utils epoch_iterator",
    "trainers/data_adapters": (
        "array_data_adapter data_adapter_utils generator_data_adapter grain_dataset_adapter py_dataset_adapter "
        "tf_dataset_adapter torch_data_loader_adapter"
    ),
    "callbacks": (
        "backup_and_restore callback csv_logger early_stopping lambda_callback learning_rate_scheduler "
        "model_checkpoint monitor_callback orbax_checkpoint reduce_lr_on_plateau remote_monitor swap_ema_weights "
        "tensorboard terminate_on_nan"
    ),
    "optimizers": (
        "adadelta adafactor adagrad adam adamax adamw ftrl lamb lion loss_scale_optimizer multi_optimizer muon nadam "
        "optimizer optimizer_sparse rmsprop schedule_free_adamw sgd"
    ),
    "optimizers/schedules": "learning_rate_schedule",
    "metrics": (
        "accuracy_metrics confusion_metrics correlation_metrics f_score_metrics hinge_metrics iou_metrics metric "
        "probabilistic_metrics reduction_metrics regression_metrics"
    ),
    "models": "cloning functional model sequential variable_mapping",
    "saving": "file_editor object_registration saving_api saving_lib serialization_lib",
}

FILES = tuple(f"keras/src/{folder}/{name}_test.py" for folder, names in _FOLDERS.items() for name in names.split())

TOGETHER = True

NEEDS = ("jax", "absl", "requests")

#: Packages that some tests need, which are skipped without; and the files that need them throughout. `orbax` comes with
#: orbax-checkpoint.
OPTIONAL = {
    "torch": tuple(
        f"keras/src/trainers/data_adapters/{name}_test.py"
        for name in _FOLDERS["trainers/data_adapters"].split()
        if name != "data_adapter_utils"
    ),
    "grain": ("keras/src/trainers/data_adapters/grain_dataset_adapter_test.py",),
    "orbax": ("keras/src/callbacks/orbax_checkpoint_test.py",),
}

#: The ranks meet after each test; the conftest of the checkout skips what needs several devices.
ARGUMENTS = ("-p", "matex_tf.pytest_plugin", "--import-mode=importlib", "--rootdir={checkout}", "-W", "ignore")

#: Tests that do not pass, and why.
EXPECTED = {
    **{
        f"keras/src/trainers/data_adapters/array_data_adapter_test.py::TestArrayDataAdapter::{name}": (
            "PyTorch ends the process where it makes float32 of float64 beside TensorFlow, also without matex_tf"
        )
        for name in (
            "test_basic_flow_torch_float64_batch",
            "test_basic_flow_torch_float64_false",
            "test_basic_flow_torch_float64_true",
        )
    },
    **{
        f"keras/src/callbacks/remote_monitor_test.py::TerminateOnNaNTest::{name}": (
            "looks on every rank for what is sent, and rank 0 alone sends"
        )
        for name in (
            "test_RemoteMonitor",
            "test_RemoteMonitorWithJsonPayload",
            "test_RemoteMonitor_np_array",
            "test_RemoteMonitor_np_float32",
        )
    },
    **{
        f"keras/src/callbacks/orbax_checkpoint_test.py::OrbaxCheckpointTest::test_checkpoint_with_assets{case}": (
            "calls the private _save_checkpoint without fit, in a folder that each rank has made for itself"
        )
        for case in (0, 1)
    },
    "keras/src/saving/saving_api_test.py::SaveModelTests::test_save_h5_format": (
        "mocks the logger on every rank, and the one rank that writes the file warns of its format"
    ),
}


def prepare(checkout: Path) -> None:
    """Nothing: Keras is as it is."""


def meet(name: str) -> None:
    """The plugin of pytest lets the ranks meet."""
