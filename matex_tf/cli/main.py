"""The command `matex-tf`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from matex_tf.core.output import open_closed
from matex_tf.errors import MatexError, SettingError
from matex_tf.job import command_line, suggestions
from matex_tf.launch import resources

#: Each command is a module of this room with `parser()` and `command(given)`, and is told so in the help.
COMMANDS = {
    "run": "run a script on many ranks: matex-tf run -n 4 train.py",
    "sbatch": "write a job script for Slurm, and hand it in: matex-tf sbatch -n 16 --submit train.py",
    "doctor": "look at this machine, say what is amiss and what to do about it",
    "top": "show a running job, live: matex-tf top",
    "join": "let ranks train in a running job as one more group: matex-tf join JOB -n 2",
    "trace": "say where the time of a step went: matex-tf trace FILE.json",
    "verify": "compare a training on N ranks with that on one: matex-tf verify -n 4 train.py",
    "plan": "predict a step's time with each strategy and on more ranks: matex-tf plan -n 4 train.py",
    "grow": "find a network among candidates, and train it: matex-tf grow net.yaml train.py",
    "bench": "measure the exchange on this machine or cluster: matex-tf bench allreduce",
    "label": "name some images on a page, a network names the rest: matex-tf label IMAGES",
    "horovodrun": "run a Horovod script: matex-tf horovodrun -np 4 python train.py",
}
#: Commands that need words, and without any print their help.
_NEED_WORDS = ("sbatch", "trace", "verify", "plan", "grow", "bench", "label", "horovodrun")


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
    except MatexError as error:
        print(f"matex-tf: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingError) else 1


def _run(words: list[str]) -> int:
    if words[0:1] == ["help"] and len(words) > 1:
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if words else 2
    name, rest = words[0], words[1:]
    if name == "--version":
        from matex_tf import __version__

        print(f"matex_tf {__version__}")
        return 0
    if name not in COMMANDS:
        near = suggestions.nearest(name, COMMANDS)
        raise SettingError(f"there is no command {name}{near}; there is {', '.join(COMMANDS)}.")
    module = importlib.import_module(f"matex_tf.cli.{name}")
    if not rest and name in _NEED_WORDS:
        module.parser().print_help()
        return 2
    given = module.parser().parse(rest)
    return 0 if given is None else module.command(given)


def overview() -> str:
    """The commands, a line each."""
    lines = [f"  {name:10}  {what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "usage: matex-tf COMMAND ...\n",
            "Train an unmodified TensorFlow or Keras script on many MPI ranks.\n",
            "commands:",
            *lines,
            "\nmatex-tf COMMAND --help tells more; matex-tf --version the version. More: docs/running.md",
        ]
    )
