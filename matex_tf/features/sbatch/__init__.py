"""`matex-tf sbatch`: the job script of a training for Slurm. What a job in Slurm needs is in matex_tf/launch/slurm.py.

It may import settings, job and features. Start reading in command.py.
"""

from matex_tf.features import Command, Feature


def register() -> Feature:
    """What this feature adds."""
    text = "write a job script for Slurm, and submit it: matex-tf sbatch -n 16 --submit train.py"
    return Feature({"sbatch": Command(text, "matex_tf.features.sbatch.command", True)}, package="matex_tf")
