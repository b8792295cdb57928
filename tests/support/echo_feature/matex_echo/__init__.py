"""Prints words."""

from matex_tf.features import Command, Feature


def register() -> Feature:
    """What this feature adds."""
    return Feature(
        commands={"echo": Command("print words: matex-tf echo WORDS", "matex_echo.command", needs_words=True)},
        settings="matex_echo.options:EchoOptions",
        faults={"echo": Command("a line says what would run, and nothing does.", "matex_echo.command")},
        pages={"echo": "the README of matex-echo"},
    )
