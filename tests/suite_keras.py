"""Tests of trainers, callbacks, optimizers, metrics, models and files that Keras 3.15 has itself (see suites.py).

The tests are those of the checkout, the Keras is the installed one.
"""

from __future__ import annotations

from pathlib import Path

FILES = tuple(
    f"keras/src/{name}_test.py"
    for name in (
        *("trainers/trainer", "trainers/compile_utils", "trainers/epoch_iterator"),
        *(
            f"trainers/data_adapters/{kind}_adapter"
            for kind in ("array_data", "generator_data", "py_dataset", "tf_dataset")
        ),
        *(
            f"callbacks/{kind}"
            for kind in ("backup_and_restore", "callback", "csv_logger", "early_stopping", "lambda_callback")
        ),
        *(f"callbacks/{kind}" for kind in ("learning_rate_scheduler", "model_checkpoint", "monitor_callback")),
        *(
            f"callbacks/{kind}"
            for kind in ("reduce_lr_on_plateau", "swap_ema_weights", "tensorboard", "terminate_on_nan")
        ),
        *(
            f"optimizers/{kind}"
            for kind in ("adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "ftrl", "lamb")
        ),
        *(
            f"optimizers/{kind}"
            for kind in ("lion", "loss_scale_optimizer", "muon", "nadam", "optimizer_sparse", "optimizer")
        ),
        *(f"optimizers/{kind}" for kind in ("rmsprop", "sgd", "schedules/learning_rate_schedule")),
        *(f"metrics/{kind}_metrics" for kind in ("accuracy", "confusion", "correlation", "f_score", "hinge", "iou")),
        *(f"metrics/{kind}_metrics" for kind in ("probabilistic", "reduction", "regression")),
        *("metrics/metric", "models/cloning", "models/functional", "models/model", "models/sequential"),
        *("saving/saving_api", "saving/saving_lib", "saving/serialization_lib", "saving/object_registration"),
    )
)

NEEDS = ("jax", "absl", "requests")

#: The ranks meet after each test; the conftest of the checkout skips what needs several devices.
ARGUMENTS = ("-p", "matex_tf.pytest_plugin", "--import-mode=importlib", "--rootdir={checkout}", "-W", "ignore")

#: Tests that do not pass, and why.
EXPECTED: dict[str, str] = {}


def prepare(checkout: Path) -> None:
    """Nothing: Keras is as it is."""


def meet(name: str) -> None:
    """The plugin of pytest lets the ranks meet."""
