"""The command `matex-tf`."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence

from matex_tf import settings as settings_module
from matex_tf.core.sign import Sign
from matex_tf.errors import MatexError, SettingError
from matex_tf.job import suggestions
from matex_tf.job.run import Target
from matex_tf.launch import mpirun_command, restart
from matex_tf.settings import Settings

USAGE = """usage: matex-tf COMMAND ...

Train an unmodified TensorFlow or Keras script on many MPI ranks.

commands:
  run       run a script on many ranks: matex-tf run -n 4 train.py
  doctor    look at this machine, say what is amiss and what to do about it
  trace     say where the time of a step went: matex-tf trace FILE.json, of a run with --trace FILE.json
  bench     measure the exchange on this machine or cluster: matex-tf bench allreduce
  plan      predict a step's time with each strategy, here and on more ranks: matex-tf plan -n 4 train.py
  horovodrun  run a Horovod script with the command line of its launcher: matex-tf horovodrun -np 4 python train.py

matex-tf COMMAND --help tells more; matex-tf --version the version."""

RUN_USAGE = """usage: matex-tf run [-n N] [--hosts H1:4,H2:4] [-x NAME] [--dry-run] [--setting value] SCRIPT [ARGS ...]
       matex-tf run ... -m MODULE [ARGS ...]

Run a script on N MPI ranks of this machine, or of others.

  -n N
      Ranks. Default: the slots of --hosts, or the tasks of the batch job, or else one for each core of this machine.
  --hosts H1:4,H2:4
      Hosts, and the ranks that each has room for. They must have the same Python at the same path.
  -x NAME
      Give other hosts this variable of the environment too; may be repeated. MATEX_*, PATH, PYTHON*, TF_* and the like
      are given to them anyway.
  --dry-run
      Print the mpirun line instead of running it.
"""

DOCTOR_USAGE = """usage: matex-tf doctor

Look at this machine: Python, TensorFlow, MPI, cores, GPUs and shared memory. Exit code 1 if training could not work."""


TRACE_USAGE = """usage: matex-tf trace FILE.json [--png FILE.png]

Say where the time of a step went, in a run that was started with --trace FILE.json, and draw the step in the middle of
the run, one row a rank (needs matplotlib). Default: FILE.png."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 2 for a command line that cannot be understood."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands: dict[str, Callable[[list[str]], int]] = {
        "run": run,
        "doctor": doctor,
        "trace": trace,
        "bench": bench,
        "plan": plan,
        "horovodrun": horovodrun,
    }
    try:
        if not words or words[0] in ("-h", "--help", "help"):
            print(USAGE)
            return 0 if words else 2
        if words[0] == "--version":
            from matex_tf import __version__

            print(f"matex_tf {__version__}")
            return 0
        if words[0] not in commands:
            near = suggestions.nearest(words[0], commands)
            raise SettingError(f"there is no command {words[0]}{near}; there is {', '.join(commands)}.")
        code = commands[words[0]](words[1:])
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # of `matex-tf run --help | head`; Python would complain again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE
    except MatexError as error:
        print(f"matex-tf: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingError) else 1


def run(words: list[str]) -> int:
    """`matex-tf run`: start a script on many ranks, and wait for it."""
    ranks, hosts, dry = 0, "", False
    names: list[str] = []
    flags: dict[str, str] = {}
    while words and words[0].startswith("-") and words[0] != "-m":
        found, rest = settings_module.split_flags(words)
        if found:
            flags.update(found)
            words = rest
            continue
        word, equals, value = words.pop(0).partition("=")
        if word in ("-h", "--help"):
            print(f"{RUN_USAGE}\n{settings_module.help_text()}")
            return 0
        if word == "--":
            break
        if word == "--dry-run":
            dry = True
        elif word in ("-n", "-np", "--hosts", "-x"):
            if not equals:
                if not words:
                    raise SettingError(f"{word} needs a value.")
                value = words.pop(0)
            if word == "--hosts":
                mpirun_command.slots(value)
                hosts = value
            elif word == "-x":
                if value not in os.environ:
                    raise SettingError(f"-x {value}: there is no such variable in the environment.")
                names.append(value)
            elif not value.isdigit() or int(value) == 0:
                raise SettingError(f"{word} is {value!r}; it must be a number of ranks, 1 or more.")
            else:
                ranks = int(value)
        else:
            near = suggestions.nearest(word, [*suggestions.RUN_FLAGS, *suggestions.settings_flags()])
            raise SettingError(f"matex-tf run has no flag {word}{near}; matex-tf run --help lists them.")
    settings = Settings.read(flags)
    target = Target.read(words)
    if not target.is_module and not os.path.exists(target.name):
        raise SettingError(f"there is no script {target.name}.")
    given = [*map(settings_module.flag_name, flags), *(["-n", "-np"] if ranks else []), *(["--hosts"] if hosts else [])]
    ranks = ranks or mpirun_command.default_ranks(hosts)
    if settings.notes and not dry:
        _say_what_may_be_meant(suggestions.misplaced(target.arguments, given), ranks, hosts)
    survive = settings.faults == "shrink"
    mpirun, seconds = mpirun_command.find_mpirun(), settings.stall_abort_seconds

    def line(ranks: int, hosts: str, more: dict[str, str]) -> list[str]:
        words = mpirun_command.mpirun_line(mpirun, ranks, hosts, settings.threads, names, survive, seconds)
        words += [sys.executable, "-m", "matex_tf"]
        for name, value in {**flags, **more}.items():
            words += [settings_module.flag_name(name), value]
        return [*words, *(["-m"] if target.is_module else []), target.name, *target.arguments]

    if dry:
        print(shlex.join(line(ranks, hosts, {})))
        return 0
    local = not hosts and not mpirun_command.in_batch_system()
    if settings.faults == "restart":
        code = restart.run(line, ranks, hosts, settings, target.name, mpirun)
    elif ranks == 1 and local:  # the code of mpirun is that of the script, however it ends
        code = mpirun_command.run(line(ranks, hosts, {}))
    else:
        with Sign() as sign:
            code = mpirun_command.run(line(ranks, hosts, {}), local=local, survive=survive, sign=sign)
        if sign.missed:
            print(f"matex_tf: error: {mpirun_command.NO_SIGN}", file=sys.stderr, flush=True)
    if settings.notes and settings.output not in ("first", "all") and ranks > 1:
        where = os.path.join(settings.output, "rank.R.log") + ("" if local else ", on its host")
        print(f"matex_tf: what each rank R printed is in {where}", file=sys.stderr, flush=True)
    return code


def _say_what_may_be_meant(misplaced: list[str], ranks: int, hosts: str) -> None:
    lines = list(misplaced)
    if hosts and ranks > mpirun_command.slots(hosts):
        lines.append(f"{ranks} ranks are more than the {mpirun_command.slots(hosts)} that --hosts {hosts} has room for")
    for line in lines:
        print(f"matex_tf: {line}", file=sys.stderr, flush=True)


def doctor(words: list[str]) -> int:
    """`matex-tf doctor`: look at this machine."""
    if words and words[0] in ("-h", "--help"):
        print(DOCTOR_USAGE)
        return 0
    if words:
        raise SettingError(f"matex-tf doctor takes no {words[0]}{suggestions.nearest(words[0], ['--help'])}.")
    from matex_tf.cli.doctor import examine

    return examine()


def trace(words: list[str]) -> int:
    """`matex-tf trace`: a table and a picture of a timeline."""
    from matex_tf.cli import trace as timeline

    if not words or words[0] in ("-h", "--help"):
        print(TRACE_USAGE)
        return 0 if words else 2
    path, png = words[0], ""
    if words[1:]:
        if len(words) != 3 or words[1] != "--png":
            near = suggestions.nearest(words[1], ["--png", "--help"]) if words[1] != "--png" else ""
            raise SettingError(f"matex-tf trace takes no {' '.join(words[1:])}{near}.")
        png = words[2]
    steps = timeline.read(path)
    timeline.show(steps)
    png = png or f"{path.removesuffix('.json')}.png"
    timeline.draw(steps, png)
    print(f"the step in the middle of the run: {png}")
    return 0


def bench(words: list[str]) -> int:
    """`matex-tf bench`: see `matex_tf.cli.bench`."""
    from matex_tf.cli.bench import command

    return command(words)


def plan(words: list[str]) -> int:
    """`matex-tf plan`: see `matex_tf.cli.plan`."""
    from matex_tf.cli.plan import command

    return command(words)


def horovodrun(words: list[str]) -> int:
    """`matex-tf horovodrun`: see `matex_tf.cli.horovodrun`."""
    from matex_tf.cli.horovodrun import command

    return command(words, run)
