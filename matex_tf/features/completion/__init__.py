"""`matex-tf completion`: what a shell completes, made from the command lines of all commands.

It may import settings, features, job and cli. Start reading in command.py.
"""

from matex_tf.features import Command, Feature


def register() -> Feature:
    """What this feature adds."""
    text = "let bash, zsh or fish complete commands and options: matex-tf completion bash"
    return Feature({"completion": Command(text, "matex_tf.features.completion.command", True)}, package="matex_tf")
