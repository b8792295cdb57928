"""Horovod's own tests of its names for TensorFlow, of release 0.28.1 (see suites.py)."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

FILES = (
    "test/parallel/test_tensorflow.py",
    "test/parallel/test_tensorflow_process_sets.py",
    "test/parallel/test_tensorflow_process_sets_dynamic.py",
    "test/parallel/test_process_sets_static.py",
    "test/parallel/test_tensorflow2_keras.py",
    "test/parallel/test_tensorflow2_keras_process_sets.py",
    "test/parallel/test_adasum_tensorflow.py",
)

NEEDS = ("mock", "parameterized", "cloudpickle")

#: Tests that do not pass, and why.
EXPECTED = {
    **{
        f"test_tensorflow.py::TensorFlowTests::{name}": (
            "takes tf.ConfigProto, which is served, as a sign of TensorFlow 1; its optimizer has no resource variables"
        )
        for name in ("test_local_gradient_aggregation", "test_local_gradient_aggregation_sparse")
    },
    "test_tensorflow.py::TensorFlowTests::test_horovod_syncbn_cpu": (
        "right eagerly; in its second half a session fetches variables of Keras 3, which no session can"
    ),
    "test_tensorflow_process_sets.py::TensorFlowProcessSetsTests::test_horovod_reducescatter_grad_cpu_process_sets": (
        "the test asks whether np.float16(0) < 1e-8, which is False since NumPy 2"
    ),
    **{
        f"test_tensorflow2_keras.py::Tf2KerasTests::{name}": "its optimizer is a subclass of Keras 2's Optimizer"
        for name in (
            "test_gradient_aggregation_0",
            "test_gradient_aggregation_1",
            "test_gradient_aggregation_with_local_vars_0",
            "test_gradient_aggregation_with_local_vars_1",
        )
    },
    "test_tensorflow2_keras.py::Tf2KerasTests::test_legacy_optimizer": "keras.optimizers.legacy is of Keras 2",
    "test_tensorflow2_keras_process_sets.py::Tf2KerasProcessSetsTests::test_process_set_optimizer": (
        "its optimizer is a subclass of Keras 2's Optimizer"
    ),
}


def prepare(checkout: Path) -> None:
    """Serve what the tests import of Horovod's launcher."""
    import horovod.runner  # noqa: F401

    util = types.ModuleType("horovod.runner.util")
    util.__path__ = []
    threads: Any = types.ModuleType("horovod.runner.util.threads")
    threads.in_thread = _in_thread
    sys.modules.update({"horovod.runner.util": util, "horovod.runner.util.threads": threads})


def _in_thread(target: Any, args: Any = (), name: Any = None, daemon: bool = True, silent: bool = False) -> Any:
    raise NotImplementedError("the tests of this suite start no threads")


def meet(name: str) -> None:
    """Wait for all ranks; one that is left waiting in a collective of the test is told so, and comes here."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    from matex_tf.errors import MatexError

    hvd.init()
    while True:
        try:
            hvd.barrier(name=f"after {name}")
            return
        except (MatexError, tf.errors.OpError, RuntimeError):
            continue
