"""The command lines of all commands: argparse, with what it lacks, and the settings' table as options.

Options end at the first word that is none, which is the script; what follows it is the script's, as with Python. An
option that nobody knows is an error that names the nearest one. The flag of a setting that can be on may stand alone.
"""

from __future__ import annotations

import argparse
import os
import signal
import textwrap
from collections.abc import Callable, Collection, Sequence
from typing import Any

from matex_tf import settings
from matex_tf.errors import SettingError
from matex_tf.job import suggestions
from matex_tf.job.target import USAGE

WIDTH = 100  # columns of the help, on any terminal
SETTING_PAGES = "docs/settings.md (python -m matex_tf.settings prints its tables)"

#: Words with a dash that are no options: what follows them is run, as by Python.
_SCRIPTS = ("-", "-m", "-c")

#: A flag and the text after it, to a value. Raises SettingError.
Convert = Callable[[str, str], Any]


def text(_: str, given: str) -> str:
    """Any text, as it was given; see `Convert`."""
    return given


def whole(least: int, what: str = "a whole number") -> Convert:
    """Reads a whole number, see `Convert`.

    Args:
        least: the smallest that it may be.
        what: what the number is, for the error.
    """

    def convert(flag: str, given: str) -> int:
        if not given.isdigit() or int(given) < least:
            raise SettingError(f"{flag} is {given!r}; it must be {what}, {least} or more.")
        return int(given)

    return convert


def one_of(*choices: str) -> Convert:
    """One of these words."""

    def convert(flag: str, given: str) -> str:
        if given not in choices:
            raise SettingError(f"{flag} is {given!r}; it can be {' or '.join(choices)}.")
        return given

    return convert


class _Store(argparse.Action):
    """Keep the value of an option, as its `Convert` makes it."""

    def __init__(self, *, convert: Convert, **rest: Any) -> None:
        super().__init__(**rest)
        self.convert = convert

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        setattr(namespace, self.dest, self.convert(option_string or "", values))


class _KeepSetting(argparse.Action):
    """Keep the text of a setting in `flags`, by its name: it is handed on to the ranks as it was given."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        namespace.flags = {**namespace.flags, str(self.const): values}


#: The settings that `-h` shows; `--help` shows all.
MOST_USED = frozenset(
    {
        "batch", "codec", "faults", "output", "progress", "require_sharing", "rows", "seed",
        "shard", "strategy", "threads", "trace",
    }
)  # fmt: skip


class Parser(argparse.ArgumentParser):
    """The command line of one command.

    Args:
        command: its name, as users type it.
        usage: what follows the name.
        about: what it does.
        page: the page that says more.
        refusal: the error for an option that there is not; has {flag}, {word} (with its value), {words}
            (it and all after it) and {near}.
        mixed: whether options may also follow the words that are none, for a command without a script.
        leads: whether a word that is none may stand before the options.
    """

    def __init__(
        self, command: str, usage: str, about: str, page: str, *, refusal: str = "", mixed: bool = False,
        leads: bool = False,
    ):  # fmt: skip
        super().__init__(
            prog=command,
            usage=f"{command} {usage}".strip(),
            description=textwrap.fill(about, WIDTH),
            epilog=f"More: {page}",
            allow_abbrev=False,
            add_help=False,
            argument_default=None,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=31, width=WIDTH),
        )
        self.refusal = refusal or f"{command} has no flag {{flag}}{{near}}; {command} --help lists them."
        self.mixed, self._leads = mixed, leads
        self.known: dict[str, argparse.Action] = {}
        self._alone: dict[str, settings.Option] = {}  # settings whose flags can stand alone
        self._by_title: dict[str, Any] = {}
        self.set_defaults(flags={})

    def add(self, title: str, *flags: str, help: str, convert: Convert = text, **more: Any) -> None:
        """Add an option to the group with a title.

        Args:
            title: of the group, which is made where it is the first.
            flags: all names of the option.
            help: what the help says of it; `argparse.SUPPRESS` for nothing.
            convert: makes its value of the text. Not for an option with an `action` of argparse's own, such as
                `append` or `store_true`.
            more: what else `add_argument` of argparse takes.
        """
        group = self._by_title.get(title)
        if group is None:
            group = self._by_title[title] = self.add_argument_group(title)
        if "action" not in more:
            more.update(action=_Store, convert=convert)
        help = help if help is argparse.SUPPRESS else help.replace("%", "%%")
        self.known.update(dict.fromkeys(flags, group.add_argument(*flags, help=help, **more)))

    def add_settings(self, leave_out: Collection[str] = (), *, shown: bool = True) -> None:
        """Add the settings as options, in the groups of the settings' table.

        Args:
            leave_out: names of settings that this command does not take.
            shown: whether the help lists them.
        """
        for title, page, options in settings.by_group():
            for option in options:
                if option.name not in leave_out:
                    self.add(
                        f"{title} ({page})",
                        option.flag,
                        help=option.in_short if shown else argparse.SUPPRESS,
                        metavar=option.value_shown,
                        action=_KeepSetting,
                        const=option.name,
                        default=argparse.SUPPRESS,
                    )
                    if option.stands_alone:
                        self._alone[option.flag] = option
        which = "Each setting" if shown else "Each setting of matex-tf run is taken, and"
        self.epilog = f"{which} can be in the environment too: --seed 4 is MATEX_SEED=4.\n{self.epilog}"

    def stands_alone(self, flag: str) -> bool:
        """Whether the flag of a setting may come without a value."""
        return flag in self._alone

    def parse(self, words: Sequence[str]) -> argparse.Namespace | None:
        """What a command line says; None where it asks for help, which is printed.

        Returns:
            The value of each option; in `flags` the settings' texts by name; in `first` the word before the options,
            if there is one, and in `rest` the words that are left.

        Raises:
            SettingError: an option that there is not, one without its value, or a value that cannot be.
            BrokenPipeError: nobody reads the help; see `reader_gone`.
        """
        own: list[str] = []
        left, rest = list(words), []
        first = [left.pop(0)] if self._leads and left and not left[0].startswith("-") else []
        while left:
            word = left.pop(0)
            if not word.startswith("-") or word in _SCRIPTS:
                rest.append(word)
                if self.mixed:
                    continue
                break
            if word == "--":
                break
            if word in ("-h", "--help"):
                if word == "-h":
                    self._keep_most_used()
                print(self.format_help(), end="", flush=True)  # argparse's own says nothing of a pipe that is closed
                return None
            own.append(self._joined(word, left))
        given = self.parse_args(own)
        given.first, given.rest = first, [*rest, *left]
        return given

    def _keep_most_used(self) -> None:
        """Leave the settings out of the help that few users need."""
        rare = [a for a in self.known.values() if isinstance(a, _KeepSetting) and a.const not in MOST_USED]
        if any(action.help is not argparse.SUPPRESS for action in rare):
            self.epilog = f"{self.prog} --help lists all {len(self.known)} options.\n{self.epilog}"
        for action in rare:
            action.help = argparse.SUPPRESS

    def _joined(self, word: str, left: list[str]) -> str:
        """An option and its value as one word, so that a value may begin with a dash; takes it from what is left."""
        flag, equals, value = word.partition("=")
        action = self.known.get(flag)
        if action is None:
            near = suggestions.nearest(flag, [*self.known, "--help"])
            raise SettingError(self.refusal.format(flag=flag, word=word, words=" ".join([word, *left]), near=near))
        if action.nargs == argparse.OPTIONAL:
            return word
        if action.nargs == 0:
            if equals:
                raise SettingError(f"{flag} takes no value.")
            return flag
        if not equals:
            if flag in self._alone and not (left and self._alone[flag].takes(left[0])):
                return f"{flag}=on"
            if not left:
                raise SettingError(f"{flag} needs a value.")
            value = left.pop(0)
        return f"{flag}={value}"

    def error(self, message: str) -> Any:
        """Raise what argparse would print.

        Raises:
            SettingError: always.
        """
        raise SettingError(f"{self.prog}: {message}.")


def reader_gone() -> int:
    """Print nothing more where nobody reads on, as in `--help | head`: Python would complain. Returns the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 128 + signal.SIGPIPE


def of_python() -> Parser:
    """The parser of `python -m matex_tf`."""
    parser = Parser(
        "python -m matex_tf",
        USAGE.removeprefix("python -m matex_tf "),
        "Run a script as one rank of the job that mpirun or srun starts.",
        SETTING_PAGES,
        refusal=f"{{word}} is not a setting{{near}}. usage: {USAGE}",
    )
    parser.add_settings()
    return parser
