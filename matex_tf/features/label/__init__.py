"""`matex-tf label`: a page on which people name some images, and a network that names the rest.

It may import core, launch, job, storage and label.network. Start reading in server.py.
"""

from matex_tf.features import Command, Feature


def register() -> Feature:
    """What this feature adds."""
    text = "label images on a page, with a network's suggestions: matex-tf label IMAGES"
    return Feature({"label": Command(text, "matex_tf.features.label.command", True)}, package="matex_tf[label]")
