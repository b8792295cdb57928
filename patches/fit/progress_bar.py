"""The progress bar under `--batch per-rank`: it counts the steps that a rank makes.

Keras counts batches of the script's size, of which a step takes one for each rank.

Relies on (Keras 3.3 to 3.15): `ProgbarLogger.set_params`, after `set_model`, and `on_train_batch_end`, public.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from matex_tf.patches.common import model_state, wrapping


def install(module: ModuleType) -> None:
    """Patch keras.src.callbacks.progbar_logger."""
    wrapping.wrap(module, "ProgbarLogger.set_params", _params)
    wrapping.wrap(module, "ProgbarLogger.on_train_batch_end", _batch)


def _params(wrapped: Any, bar: Any, args: Any, kwargs: Any) -> Any:
    given = dict(args[0] if args else kwargs["params"])
    if given.get("steps") is not None and bar.model is not None:
        given["steps"] = -(-given["steps"] // model_state.of(bar.model).batches_in_step)
    return wrapped(given)


def _batch(wrapped: Any, bar: Any, args: Any, kwargs: Any) -> Any:
    batch, *rest = args if args else (kwargs.pop("batch"),)
    return wrapped(batch // model_state.of(bar.model).batches_in_step, *rest, **kwargs)
