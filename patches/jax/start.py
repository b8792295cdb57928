"""JAX learns of the ranks when the script imports it, if Keras is to compute with it: it may be used at once.

A script that chooses the backend after its import of JAX comes to `trainer`, when it imports Keras.
"""

from __future__ import annotations

from types import ModuleType

from matex_tf.patches.common import wrapping
from matex_tf.patches.imports import other_frameworks
from matex_tf.patches.jax import team


def install(module: ModuleType) -> None:
    """Called at the import of jax."""
    if other_frameworks.backend_asked_for() == "jax" and not wrapping.is_aside() and not wrapping.alone():
        team.join()
