"""While a loop of Keras is at work, callbacks and steps of the script's own among it, nothing of this package is.

Relies on (Keras 3.3 to 3.15): `Trainer.fit`, `evaluate`, `predict`, `train_on_batch`, `test_on_batch`,
`predict_on_batch`, public.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from matex_tf.patches.common import keras_lines, under_way, wrapping
from matex_tf.patches.loops import position, replica_sync
from matex_tf.patches.turns import data_threads


def install(module: ModuleType) -> None:
    """Patch keras.src.backend.tensorflow.trainer."""
    for name in ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"):
        wrapping.wrap(module, f"{keras_lines.trainer(module)}.{name}", _run)


def _run(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    if data_threads.are_made_here():
        with data_threads.alone(model, wrapped.__name__):
            return wrapped(*args, **kwargs)
    if position.active():
        replica_sync.merge_statistics()
    with under_way.having(in_keras=True):
        return wrapped(*args, **kwargs)
