"""`matex-tf trace`: where the time of a step went, as a table, as a picture and as a page.

It may import core, storage, planning and job. Start reading in command.py.
"""

from matex_tf.features import Command, Feature


def register() -> Feature:
    """What this feature adds."""
    text = "say where the time of a step went: matex-tf trace FILE.json"
    return Feature({"trace": Command(text, "matex_tf.features.trace.command", True)}, package="matex_tf[plots]")
