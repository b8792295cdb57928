"""Trainings that change while they run: neurons that go and come. Knows Keras.

It may import core, exchange and patches. Start reading in surgery.py.
"""

from matex_tf.features import Feature


def register() -> Feature:
    """What this feature adds."""
    hooks = "matex_tf.features.dynamics.patches"
    return Feature(
        settings="matex_tf.features.dynamics.options:DynamicsOptions",
        pages={"dynamics": "docs/dynamics.md"},
        patches=(("keras.src.backend.tensorflow.trainer", f"{hooks}.changing_fit"),),
        facts="matex_tf.features.dynamics.patches.facts:FACTS",
        package="matex_tf",
    )
