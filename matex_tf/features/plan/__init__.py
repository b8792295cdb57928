"""`matex-tf plan`: which strategy pays on how many ranks, by what is measured and by the formulas of the strategies.

It may import core, storage, exchange, center, strategies, planning, launch, job and cli. Start reading in predict.py.
"""

from matex_tf.features import Command, Feature


def register() -> Feature:
    """What this feature adds."""
    text = "predict a step's time with each strategy and on more ranks: matex-tf plan -n 4 train.py"
    return Feature({"plan": Command(text, "matex_tf.features.plan.command", True)}, package="matex_tf")
