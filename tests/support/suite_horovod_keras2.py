"""Horovod's own tests of its names for Keras, on Keras 2, for which they were written (see suites.py)."""

from __future__ import annotations

import os

from suite_horovod import NEEDS, meet, prepare

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # of the driver too, which starts the ranks

FILES = (
    "test/parallel/test_tensorflow2_keras.py",
    "test/parallel/test_tensorflow2_keras_process_sets.py",
)

#: All of them pass.
EXPECTED: dict[str, str] = {}

__all__ = ["EXPECTED", "FILES", "NEEDS", "meet", "prepare"]
