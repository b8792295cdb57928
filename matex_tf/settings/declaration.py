"""How a setting is declared, and what follows from that: its flag, its variable, its line in the help, what it can be.

A setting is a field of a frozen dataclass: of `Settings`, or of the options that a strategy declares.

    @dataclasses.dataclass(frozen=True)
    class PipeOptions:
        pipe_width: int = option(2, "How many steps are in the pipe.", kind="positive")

So there is `--pipe-width 3`, and `MATEX_PIPE_WIDTH=3`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from matex_tf.errors import SettingError
from matex_tf.features import registry

#: What a setting can be where it has no choices, and how the help shows that.
KINDS = {
    "text": "TEXT",
    "file": "FILE",
    "dir": "DIR",
    "count": "N",  # 0, 1, 2, …
    "positive": "N",  # 1, 2, …
    "integer": "N",
    "seconds": "SECONDS",
    "number": "X",  # 0 or more, with a fraction
    "switch": "on|off",
}


def option(
    default: Any,
    text: str,
    *,
    kind: str = "text",
    choices: Sequence[str] = (),
    group: str = "",
    of_job: bool = False,
    common: bool = False,
) -> Any:
    """Declare a setting: the default of a field.

    Args:
        text: sentences. The first is its line in the help, all of them stand in docs/settings.md.
        kind: what it can be, one of `KINDS`.
        choices: the words that it can be.
        group: its topic, see `listing.PAGES`; an option of a strategy has that of the strategy.
        of_job: whether it is for the ranks that begin a job, and not for those that come to it.
        common: whether scripts have a flag of this name for themselves.
    """
    assert kind in KINDS, kind
    known = {"text": text, "kind": kind, "choices": tuple(choices), "group": group}
    return dataclasses.field(default=default, metadata={**known, "of_job": of_job, "common": common})


@dataclasses.dataclass(frozen=True)
class Option:
    """A setting, as it was declared; see `option`. Its name is that of the field."""

    name: str
    default: Any
    text: str
    kind: str
    choices: tuple[str, ...]
    group: str
    of_job: bool
    common: bool

    @classmethod
    def of(cls, declared: type[Any], group: str = "") -> list[Option]:
        """The settings that a dataclass declares, in their order.

        Args:
            group: the topic of those that name none.
        """
        return [
            cls(field.name, field.default, **{**field.metadata, "group": field.metadata["group"] or group})
            for field in dataclasses.fields(declared)
            if "kind" in field.metadata
        ]

    def with_choices(self, more: Mapping[str, str]) -> Option:
        """It with choices that others add: their names, and what each does, in sentences."""
        about = "".join(f" `{name}`: {text}" for name, text in more.items())
        return dataclasses.replace(self, text=self.text + about, choices=(*self.choices, *more))

    @property
    def flag(self) -> str:
        return flag_name(self.name)

    @property
    def variable(self) -> str:
        return variable_name(self.name)

    def read(self, text: str, given_as: str) -> Any:
        """The value of what a user has given.

        Args:
            given_as: the flag or the variable, for messages.

        Raises:
            SettingError: the setting cannot have this value.
        """
        if self.choices and text not in self.choices:
            absent = registry.installed_by(f"{self.flag}={text}")
            raise SettingError(f"{given_as} is {text!r}; it can be {' or '.join(self.choices)}{absent}.")
        if self.kind in ("count", "integer", "positive"):
            return _whole_number(text, self.kind, given_as)
        if self.kind in ("seconds", "number"):
            return _number(text, self.kind, given_as)
        if self.kind == "switch":
            return _switch(text, given_as)
        if not text:
            raise SettingError(f"{given_as} is empty.")
        return text

    def as_text(self, value: Any) -> str:
        """A value as a user would type it."""
        return ("off", "on")[value] if self.kind == "switch" else str(value)

    @property
    def default_shown(self) -> str:
        """The default, as a user would type it."""
        return f"{self.default:g}" if self.kind in ("seconds", "number") else self.as_text(self.default)

    @property
    def value_shown(self) -> str:
        """What it takes, as the help shows it: `global|per-rank`, `N`; in brackets where its flag can stand alone."""
        shown = "|".join(self.choices) or KINDS[self.kind]
        return f"[{shown}]" if self.stands_alone else shown

    @property
    def stands_alone(self) -> bool:
        """Whether its flag without a value means on."""
        return self.kind == "switch" or "on" in self.choices

    def takes(self, word: str) -> bool:
        """Whether a word is a value of a setting whose flag can stand alone."""
        return word in self.choices or (self.kind == "switch" and word.lower() in (*_ON, *_OFF))

    @property
    def in_short(self) -> str:
        """What it does, in its first sentence, and its default: its line in the help."""
        first = self.text.partition(". ")[0].rstrip(".").replace("`", "")
        return f"{first} (default: {self.default_shown})" if self.default_shown else first


_ON, _OFF = ("on", "1", "true", "yes"), ("off", "0", "false", "no")


def flag_name(name: str) -> str:
    """`batch` to `--batch`, `some_name` to `--some-name`."""
    return "--" + name.replace("_", "-")


def variable_name(name: str) -> str:
    """`batch` to `MATEX_BATCH`."""
    return "MATEX_" + name.upper()


def _whole_number(text: str, kind: str, given_as: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise SettingError(f"{given_as} is {text!r}; it must be a whole number.") from None
    if kind == "count" and number < 0:
        raise SettingError(f"{given_as} is {number}; it must not be negative.")
    if kind == "positive" and number < 1:
        raise SettingError(f"{given_as} is {number}; it must be 1 or more.")
    return number


def _number(text: str, kind: str, given_as: str) -> float:
    of = " of seconds" if kind == "seconds" else ""
    try:
        number = float(text)
    except ValueError:
        raise SettingError(f"{given_as} is {text!r}; it must be a number{of}.") from None
    if not 0 <= number < float("inf"):
        raise SettingError(f"{given_as} is {text}; it must be 0 or more{of and ' seconds'}.")
    return number


def _switch(text: str, given_as: str) -> bool:
    if text.lower() in _ON:
        return True
    if text.lower() in _OFF:
        return False
    raise SettingError(f"{given_as} is {text!r}; it can be on or off.")
