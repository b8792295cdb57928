"""Prints words."""

from matex_tf.features import Command, Feature


def register() -> Feature:
    """What this feature adds."""
    return Feature(
        commands={"echo": Command("print words: matex-tf echo WORDS", "matex_echo.command", needs_words=True)},
        settings="matex_echo.options:EchoOptions",
        pages={"echo": "the README of matex-echo"},
    )
