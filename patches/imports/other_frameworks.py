"""Frameworks that matex_tf does not share out: that they train is noted, see `sharing_report`.

Relies on, public: (Keras 3.3 to 3.15) `BaseOptimizer.apply`; (PyTorch 2) `register_optimizer_step_pre_hook` of
torch.optim.optimizer; `jax.grad` and `jax.value_and_grad`. What another version lacks is not seen.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from matex_tf.features import registry
from matex_tf.patches.common import log_once, sharing_report, under_way, wrapping

_NAMES = {"torch": "PyTorch", "jax": "JAX"}


def install(module: ModuleType) -> None:
    """Patch torch, jax, keras.src.backend or keras.src.optimizers.base_optimizer."""
    if module.__name__.startswith("keras."):
        _other_backend(module)
        return
    served = module.__name__ == backend_asked_for() and module.__name__ in registry.backends()
    if not served and not wrapping.is_aside() and not wrapping.alone() and _imported_by_script():
        log_once.log(
            f"{_NAMES[module.__name__]} is imported: matex_tf does not split what it trains, and each rank trains all "
            f"of it. It splits TensorFlow, and Keras on {' or '.join(registry.backends())}"
        )
    if module.__name__ == "torch":
        optimizers = importlib.import_module("torch.optim.optimizer")  # torch.optim hides it
        register = getattr(optimizers, "register_optimizer_step_pre_hook", None)
        if register is not None:
            register(functools.partial(_unless_divided, "torch"))
    else:
        for name in ("grad", "value_and_grad"):
            _before(module, name, functools.partial(_unless_divided, "jax"))


def backend() -> str:
    """What this Keras computes with."""
    config = sys.modules.get("keras.src.backend.config")
    return str(config.backend()) if config is not None else "tensorflow"


def backend_asked_for() -> str:
    """What Keras computes with, or will when it is imported: by the environment or its file of settings."""
    if "keras.src.backend.config" in sys.modules:
        return backend()
    if asked := os.environ.get("KERAS_BACKEND", ""):
        return asked
    try:
        home = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
        found = json.loads((home / "keras.json").read_text()).get("backend", "tensorflow")
    except (OSError, ValueError, AttributeError, RuntimeError):
        return "tensorflow"
    return str(found)


def _other_backend(module: ModuleType) -> None:
    kind = backend()
    if kind in registry.backends() or wrapping.is_aside() or wrapping.alone():
        return
    if module.__name__ == "keras.src.backend":
        log_once.log(
            f"Keras computes with {kind}: matex_tf does not split what it trains, and each rank trains all of it. Set "
            f"KERAS_BACKEND to {' or '.join(registry.backends())}"
        )
    else:
        _before(module.BaseOptimizer, "apply", lambda *_, **__: sharing_report.trained("keras", backend=kind))


def _before(owner: Any, name: str, note: Callable[..., None]) -> None:
    """Call `note` with its arguments before a function of a module or a class."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def noted(*args: Any, **kwargs: Any) -> Any:
        note(*args, **kwargs)
        return original(*args, **kwargs)

    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and hasattr(tensorflow, "autograph"):
        noted = tensorflow.autograph.experimental.do_not_convert(noted)
    setattr(owner, name, noted)


def _unless_divided(name: str, *_: Any, **__: Any) -> None:
    """Training of another framework, unless the script has started the framework's own ranks."""
    asks = getattr(getattr(sys.modules[name], "distributed", None), "is_initialized", None)
    try:
        divided = bool(asks and asks())
    except (AttributeError, RuntimeError):  # a framework that was built without it
        divided = False
    if name == backend() not in registry.backends():
        sharing_report.trained("keras", backend=name)
    elif not (under_way.now().in_step if name == backend() else divided):
        sharing_report.trained(name)


def _imported_by_script() -> bool:
    """Whether code of the script's own imports, and not an installed package for its own ends."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        "importlib" in frame.f_code.co_filename
        or not sharing_report.of_the_script(frame.f_code.co_filename)
        and _passes(frame)
    ):
        frame = frame.f_back
    return frame is not None and sharing_report.of_the_script(frame.f_code.co_filename)


def _passes(frame: FrameType) -> bool:
    """Whether a frame is one of those that every import passes through."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith(("wrapt", "matex_tf", "importlib"))
