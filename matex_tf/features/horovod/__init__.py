"""Horovod's names for scripts that import them, and `matex-tf horovodrun`. Knows Keras.

It may import core, job, cli and patches. Start reading in alias.py.
"""

from matex_tf.features import Command, Feature


def register() -> Feature:
    """What this feature adds."""
    text = "run a Horovod script: matex-tf horovodrun -np 4 python train.py"
    return Feature(
        commands={"horovodrun": Command(text, "matex_tf.features.horovod.command", True)},
        starts=("matex_tf.features.horovod.alias:install",),
        patches=(("horovod.tensorflow", "matex_tf.features.horovod.installed"),),
        facts="matex_tf.features.horovod.facts:FACTS",
        package="matex_tf",
    )
