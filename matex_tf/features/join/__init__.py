"""Ranks that come to a job while it trains: `matex-tf join`, and `--hosts-file` of a job with `--ranks`.

It may import core, faults, storage, watching, job, launch, cli, patches and join.patches. Start reading in growth.py.
"""

from matex_tf.features import Command, Feature


def register() -> Feature:
    """What this feature adds."""
    here = "matex_tf.features.join"
    text = "let ranks train in a running job as one more group: matex-tf join JOB -n 2"
    return Feature(
        commands={"join": Command(text, f"{here}.command")},
        patches=(("keras.src.optimizers.base_optimizer", f"{here}.patches.growing_fit"),),
        watched=f"{here}.follow:let_come",
        beside=f"{here}.follow:follow",
        facts=f"{here}.facts:FACTS",
        package="matex_tf",
    )
