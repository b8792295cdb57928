"""The command `matex-tf`."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence

from matex_tf.cli import pages
from matex_tf.core.output import open_closed
from matex_tf.errors import MatexError, SettingError
from matex_tf.features import Command, registry
from matex_tf.job import command_line, suggestions
from matex_tf.launch import resources

#: The commands of the core; those of features come after them.
COMMANDS = {
    name: Command(text, f"matex_tf.cli.{name}", needs_words)
    for name, text, needs_words in (
        ("run", "run a script on many ranks: matex-tf run -n 4 train.py", False),
        ("doctor", "check this machine, and say what to do", False),
    )
}


def commands() -> dict[str, Command]:
    """Every command by its name.

    Raises:
        MatexError: a feature has a command that the core has.
    """
    of_features = registry.commands()
    for name in set(COMMANDS) & set(of_features):
        raise MatexError(f"the command {name} is in {of_features[name].module} too: uninstall that package.")
    return {**COMMANDS, **of_features}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 2 for a command line that cannot be understood."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    open_closed()
    resources.give_home(os.environ)
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return command_line.reader_gone()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except MatexError as error:
        print(f"matex-tf: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingError) else 1


def _run(words: list[str]) -> int:
    if words[0:1] == ["help"] and len(words) > 1:
        if words[1] not in commands():
            pages.show(words[1], commands())
            return 0
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if words else 2
    name, rest = words[0], words[1:]
    if name == "--version":
        from matex_tf import __version__

        print(f"matex_tf {__version__}")
        return 0
    known = commands()
    if name not in known:
        near = suggestions.nearest(name, known)
        raise SettingError(f"there is no command {name}{near}; there is {', '.join(known)}.")
    module = importlib.import_module(known[name].module)
    if not rest and known[name].needs_words:
        module.parser().parse(["-h"])
        return 2
    given = module.parser().parse(rest)
    return 0 if given is None else module.command(given)


def overview() -> str:
    """The commands, a line each."""
    lines = [f"  {name:10}  {one.text}" for name, one in commands().items()]
    return "\n".join(
        [
            "usage: matex-tf COMMAND ...\n",
            "Train an unmodified TensorFlow or Keras script on many MPI ranks.\n",
            "commands:",
            *lines,
            "\nmatex-tf COMMAND -h shows the options used most, --help all; matex-tf --version.",
            "matex-tf help docs/running.md shows that page, and so any other that a message names.",
        ]
    )
