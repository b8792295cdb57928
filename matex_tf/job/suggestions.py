"""What a command line or an environment may have been meant to say."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from matex_tf.core import starting
from matex_tf.features import registry
from matex_tf.settings import Settings, options

#: Variables of the runtime that are not settings; beginnings of those of its tests, and of what records.
_OWN = (
    *("MATEX_TF", "MATEX_STDIN", "MATEX_RESTARTS", "MATEX_DIED", "MATEX_END"),
    *("MATEX_TERMINAL", "MATEX_PARENT", "MATEX_OF_THE_USER", "MATEX_SCRIPT", "MATEX_CLOSED"),
)
_BEGINNINGS = ("MATEX_TEST_", starting.RECORD)


def settings_flags() -> list[str]:
    """The flags of all settings."""
    return [one.flag for one in options()]


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error about a word: " (did you mean --batch?)", or which feature has it; or nothing.

    Args:
        word: what was given, and is not known.
        known: what there is.
    """
    if absent := registry.installed_by(word):
        return absent
    close = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {close[0]}?)" if close else ""


def without_effect_alone(settings: Settings) -> str:
    """What was asked for and cannot be had on one rank, in a line; empty where there is nothing such."""
    flags = [
        flag
        for flag, asked in (
            (f"--trace {settings.trace}", settings.trace),
            (f"--steps {settings.steps}", settings.steps),
            ("--progress on", settings.progress == "on"),
            (f"--output {settings.output}", settings.output not in ("first", "all")),
        )
        if asked
    ]
    flags += filter(None, (getattr(one, "without_effect_alone", "") for one in settings.declared))
    which = "has" if len(flags) == 1 else "have"
    return f"one rank runs the script as Python does: {', '.join(flags)} {which} no effect" if flags else ""


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A line for each variable that looks like a setting and is none."""
    known = [one.variable for one in options()]
    return [
        f"there is no setting {name}, which is in the environment{nearest(name, known)}"
        for name in sorted(environ)
        if name.startswith("MATEX_") and name not in (*known, *_OWN) and not name.startswith(_BEGINNINGS)
    ]


def misplaced(arguments: Sequence[str], given: Iterable[str]) -> list[str]:
    """A line for each flag after a script that may have been meant for the launcher.

    Args:
        arguments: the script's.
        given: flags that the launcher has been given.
    """
    ours = {"-n", "-np", "--hosts", *(one.flag for one in options() if not one.common)} - set(given)
    words = list(dict.fromkeys(word.partition("=")[0] for word in arguments))
    return [
        f"{word} comes after the script, so it is the script's: what is meant for matex-tf run comes before it"
        for word in words
        if word in ours
    ]
