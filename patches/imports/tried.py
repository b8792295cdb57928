"""Whether the Keras or TensorFlow that a script has imported is one that the patches know.

A patch is applied when the module that it is for is imported. Where that module has another name the patch would never
be applied, without a word: so each must exist in the package.
"""

from __future__ import annotations

import os
import re
from types import ModuleType

from matex_tf.core import world
from matex_tf.errors import NameMoved
from matex_tf.patches import table
from matex_tf.patches.common import keras_lines, log_once, wrapping

#: What it looks at.
PACKAGES = {"tensorflow", "keras", "tf_keras"}
#: Versions of TensorFlow that every patch was tried with.
_TENSORFLOW = "2.13 to 2.21"
#: Modules that older versions of Keras 3 lack, and the first that has them.
SINCE = {
    "keras.src.callbacks.orbax_checkpoint": (3, 13),
    "keras.src.layers.preprocessing.image_preprocessing.cut_mix": (3, 9),
    "keras.src.layers.preprocessing.image_preprocessing.mix_up": (3, 8),
    "keras.src.layers.preprocessing.image_preprocessing.mosaic": (3, 16),
    "keras.src.backend.tensorflow.ops.nn": (3, 16),
}
#: Modules that newer versions lack, and the first that does.
UNTIL = {"keras.src.backend.tensorflow.nn": (3, 16)}


def install(module: ModuleType) -> None:
    """Look at keras, tf_keras or tensorflow.

    Raises:
        NameMoved: it lacks a module that a patch is for.
    """
    version = str(getattr(module, "__version__", "unknown"))
    of_keras_2 = module.__name__ == "tf_keras" or (module.__name__ == "keras" and keras_lines.keras_is_2())
    known = _TENSORFLOW if module.__name__ == "tensorflow" else wrapping.TRIED_2 if of_keras_2 else wrapping.TRIED
    if module.__name__ != "tensorflow":
        gone = missing(list(module.__path__), "tf_keras" if of_keras_2 else "keras", version)
        if gone:
            raise NameMoved(
                f"{module.__name__} {version} has no module {gone[0]}, which matex_tf patches; it was tried with Keras "
                f"{known}. Install one of these, or a newer matex_tf."
            )
    if not (world.current().is_single or within(version, known)):
        log_once.log(
            f"{module.__name__} {version} is none of the versions that matex_tf was tried with ({known}). What a patch "
            "relies on may have changed: matex-tf verify SCRIPT compares ranks with one, or install one of these."
        )


def missing(places: list[str], package: str, version: str) -> list[str]:
    """The modules that patches are for, and that a package lacks.

    Args:
        places: folders of the package.
        package: "keras" or "tf_keras", as in the table of patches.
        version: of the package, such as "3.15.1".
    """
    rows = (*table.PATCHES, *table.of_features(), *table.recording())
    names = {name for name, _ in rows if name.startswith(f"{package}.")}
    number = _numbers(version)
    expected = {name for name in names if SINCE.get(name, (0, 0)) <= number < UNTIL.get(name, (99, 0))}
    return sorted(name for name in expected if not any(_is_in(place, name) for place in places))


def within(version: str, known: str) -> bool:
    """Whether a `version` lies in the range `known`, such as "3.3 to 3.15"; one that nobody can read counts as one that
    does."""
    low, _, high = known.partition(" to ")
    return not _numbers(version) or _numbers(low) <= _numbers(version) <= _numbers(high)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()


def _is_in(place: str, name: str) -> bool:
    path = os.path.join(place, *name.split(".")[1:])
    return os.path.exists(f"{path}.py") or os.path.isdir(path)
