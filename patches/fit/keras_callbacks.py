"""What Keras' own callbacks count: ranks in `History`, and steps in the progress bar.

Where ranks may die, `History` says how many there were at the end of each epoch, as `world_size`. Under
`--batch per-rank` the progress bar counts the steps that a rank makes: Keras counts batches of the script's size, of
which a step takes one for each rank.

Relies on (Keras 3.3 to 3.15): `History.on_epoch_end(epoch, logs)` and `History.history`; `ProgbarLogger.set_params`,
after `set_model`, and `on_train_batch_end`, all public.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from matex_tf.core import world
from matex_tf.patches.common import model_state, wrapping


def install(module: ModuleType) -> None:
    """Patch keras.src.callbacks.history and .progbar_logger, or the former in tf_keras.src.callbacks."""
    if not module.__name__.endswith(".progbar_logger"):
        wrapping.wrap(module, "History.on_epoch_end", _count_ranks)
    else:
        wrapping.wrap(module, "ProgbarLogger.set_params", _params)
        wrapping.wrap(module, "ProgbarLogger.on_train_batch_end", _batch)


def _count_ranks(wrapped: Any, history: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    if world.current().survives_failures:
        history.history.setdefault("world_size", []).append(world.size())
    return result


def _params(wrapped: Any, bar: Any, args: Any, kwargs: Any) -> Any:
    given = dict(args[0] if args else kwargs["params"])
    if given.get("steps") is not None and bar.model is not None:
        given["steps"] = -(-given["steps"] // model_state.of(bar.model).batches_in_step)
    return wrapped(given)


def _batch(wrapped: Any, bar: Any, args: Any, kwargs: Any) -> Any:
    batch, *rest = args if args else (kwargs.pop("batch"),)
    return wrapped(batch // model_state.of(bar.model).batches_in_step, *rest, **kwargs)
