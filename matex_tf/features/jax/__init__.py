"""Keras on JAX: steps that XLA divides among the ranks, each of which has its rows of a batch.

Between steps a rank has arrays of its own, as on one rank; in a step they are those of all ranks.
It may import core, readers, watching, patches.common, patches.fit, patches.imports and patches.steps.
Start reading in step.py.
"""

from matex_tf.features import Feature


def register() -> Feature:
    """What this feature adds."""
    here = "matex_tf.features.jax"
    return Feature(
        patches=(("jax", f"{here}.team"), ("keras.src.backend.jax.trainer", f"{here}.trainer")),
        backends=("jax",),
        facts=f"{here}.facts:FACTS",
        package="matex_tf[jax]",
    )
