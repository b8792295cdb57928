"""While a loop of Keras is at work, callbacks and steps of the script's own among it, nothing of this package is.

Relies on (Keras 3.3 to 3.15): `TensorFlowTrainer.fit`, `evaluate`, `predict`, `train_on_batch`, `test_on_batch`,
`predict_on_batch`, public.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from matex_tf.patches import names, scope
from matex_tf.patches.loops import alike, position


def apply(module: ModuleType) -> None:
    """Patch keras.src.backend.tensorflow.trainer."""
    for name in ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"):
        names.wrap(module, f"TensorFlowTrainer.{name}", _run)


def _run(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    if position.active():
        alike.merge_statistics()
    with scope.keras_runs():
        return wrapped(*args, **kwargs)
