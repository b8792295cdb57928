"""The Keras of a script for Horovod: Keras 3, or Keras 2 by tf_keras or as what an older TensorFlow brings."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from matex_tf.patches.common import keras_lines


def _name() -> str:
    if keras_lines.keras_is_2() or not keras_lines.has_keras_2():
        return "keras"
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        return "tf_keras"
    return "tf_keras" if "tf_keras" in sys.modules and "keras" not in sys.modules else "keras"


#: The package, as the script had it when it imported Horovod.
keras: Any = importlib.import_module(_name())

#: Whether that is Keras 2.
IS_2 = keras_lines.is_of_keras_2(keras.Model.__module__)
