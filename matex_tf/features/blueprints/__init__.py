"""`matex-tf grow`: networks that are candidates for one task, the ranges that they are drawn from, and which goes on.

It may import core, planning (for pictures), launch, job and blueprints.candidates, and does not know Keras.

Start reading in halving.py.
"""

from matex_tf.features import Command, Feature


def register() -> Feature:
    """What this feature adds."""
    text = "find a network among candidates, and train it: matex-tf grow net.yaml train.py"
    return Feature(
        commands={"grow": Command(text, "matex_tf.features.blueprints.command", True)},
        names={"Blueprint": "matex_tf.features.blueprints.candidates.blueprint"},
        facts="matex_tf.features.blueprints.facts:FACTS",
        package="matex_tf[yaml]",
    )
