"""`--faults restart`: a job whose rank has died is started again, and goes on from its last checkpoint.

It may import core, faults, storage and launch. Start reading in launcher.py.
"""

from matex_tf.features import Command, Feature


def register() -> Feature:
    """What this feature adds."""
    here = "matex_tf.features.restart"
    text = "`matex-tf run` starts the job again from the last checkpoint (any MPI)."
    return Feature(
        settings=f"{here}.options:RestartOptions",
        faults={"restart": Command(text, f"{here}.launcher")},
        package="matex_tf",
    )
