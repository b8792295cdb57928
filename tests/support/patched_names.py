"""A script that trains a little, and writes down its losses, and which names of all modules lead to a patch.

Names and not functions: other modules may have imported what a patch has replaced, before or after it did.
"""

from __future__ import annotations

import json
import os
import sys
import types
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import wrapt


def is_ours(found: Any) -> bool:
    """Whether a function, or one that it wraps, is of matex_tf."""
    for _ in range(10):
        if isinstance(found, (wrapt.FunctionWrapper, wrapt.BoundFunctionWrapper)):
            return True
        if not isinstance(found, types.FunctionType):
            return False
        if str(found.__globals__.get("__name__", "")).startswith("matex_tf"):
            return True
        found = vars(found).get("__wrapped__")
    return False


def members(owner: Any) -> dict[str, Any]:
    """What a module or class has, without what it inherits."""
    found = {}
    for name, value in list(vars(owner).items()):
        if isinstance(value, property):
            value = value.fget
        found[name] = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
    return found


def patched() -> list[str]:
    """The names, as in "keras.src.losses.losses.Loss: call"."""
    found = set()
    for place, module in list(sys.modules.items()):
        if place.startswith(("matex_tf", "wrapt", "__main__", "__mp_main__")) or not isinstance(
            module, types.ModuleType
        ):
            continue
        for name, value in list(vars(module).items()):
            if isinstance(value, type):
                if not str(value.__module__).startswith("matex_tf"):
                    for inner, function in members(value).items():
                        if is_ours(function):
                            found.add(f"{value.__module__}.{value.__qualname__}: {inner}")
                else:
                    found.add(f"{place}: {name} is {value.__qualname__}")
            elif is_ours(value):
                found.add(f"{place}: {name}")
            elif isinstance(value, dict):  # such as the table of all losses
                found |= {f"{place}: {name}[{key!r}]" for key, one in list(value.items()) if is_ours(one)}
    return sorted(found)


tf.keras.layers.Dense  # noqa: B018 - loaded when it is asked for
x = np.random.RandomState(0).rand(60, 8).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(5), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
model.compile("adam", keras.losses.get("mean_squared_error"))
losses = model.fit(x, x[:, :1], batch_size=24, epochs=2, verbose=0).history["loss"]
said = {
    "names": patched(),
    "losses": losses,
    "parent": os.getppid(),
    "environ": sorted(name for name in os.environ if name.startswith("MATEX_") and name != "MATEX_PARENT"),
    "threads": [os.environ.get(name) for name in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")],
    "drawn": [float(tf.random.uniform(())), float(np.random.rand()), float(np.random.default_rng().random())],
    "path": sys.path[0],
    "argv": sys.argv,
}
with open(f"{sys.argv[1]}.{os.environ['OMPI_COMM_WORLD_RANK']}", "w") as file:
    json.dump(said, file)
print("trained")
