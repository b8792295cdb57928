"""Models of Keras 2, whose rows have no scores.

Relies on (Keras 2.13 to 2.15): `Model.fit`; public.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from matex_tf import settings
from matex_tf.errors import MatexError
from matex_tf.features.samples.options import SampleOptions
from matex_tf.patches.common import wrapping


def install(module: ModuleType) -> None:
    """Patch tf_keras.src.engine.training."""
    wrapping.wrap(module, "Model.fit", _refuse)


def _refuse(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    """Raises: MatexError: a setting that is for Keras 3 alone."""
    if settings.current().of(SampleOptions).scores_samples:
        raise MatexError(
            "--prune-samples and --sample-scores are for models of Keras 3, and this one is of tf_keras (Keras 2): "
            "leave them out (docs/keras2.md)."
        )
    return wrapped(*args, **kwargs)
