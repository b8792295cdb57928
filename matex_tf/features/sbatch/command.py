"""`matex-tf sbatch`: write the job script of a training for Slurm, and hand it in."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from matex_tf import __version__
from matex_tf import settings as settings_module
from matex_tf.errors import EndsToResume, MatexError, MissingPackage, SettingError
from matex_tf.features import registry
from matex_tf.job.command_line import SETTING_PAGES, Parser, whole
from matex_tf.job.target import Target
from matex_tf.settings import Settings

_WRITTEN_BY = "# Written by matex-tf sbatch"

#: Options of Slurm's sbatch that are taken here under its own names: flags, value, help.
_OPTIONS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("-n", "--ntasks"), "N", "Ranks"),
    (("-N", "--nodes"), "N", "Nodes"),
    (("--ntasks-per-node",), "N", "Ranks on each node"),
    (("--cpus-per-task",), "N", "Cores for each rank"),
    (("--gpus-per-node",), "N", "GPUs of each node, which its ranks share out; give as many --ntasks-per-node"),
    (("--time",), "TEXT", "Time limit, as sbatch takes it, such as 4:00:00"),
    (("--partition",), "TEXT", "Partition"),
    (("--account",), "TEXT", "Account"),
    (("--array",), "TEXT", "Run it several times, such as 0-3; the script finds its number in SLURM_ARRAY_TASK_ID"),
    (("--job-name",), "TEXT", "Name of the job (default: that of the script)"),
)
_WHOLE = re.compile(r"N")

_HEAD = """#!/bin/bash
{options}
{written_by} {version}: a training with --faults {faults}. Slurm starts it with: sbatch {file}
"""

#: Bash waits for a program in the background, or it would not hear a signal before the program ends.
_RESUMES = """
# {whose}, where all nodes see them. They stay until the training is complete.
checkpoints={checkpoints}
mkdir -p "$checkpoints"

# Starts again by itself after a death, on the nodes that are left. --resume on continues from the checkpoints of an
# earlier run after a requeue; without any the training begins.
{command} &
job=$!

# {seconds} s before the time limit: a checkpoint, and the end of all ranks.
trap 'kill -USR1 $job' USR1
wait $job
code=$?
if [[ $code -eq 138 ]]; then  # the signal has ended this wait, not the job
    wait $job
    code=$?
fi

if [[ $code -eq {resume} ]]; then  # there is a checkpoint: queue the job again, to continue from it
    scontrol requeue {id} && sleep 60  # in which Slurm ends this script
{tidy}fi
exit $code
"""

_TIDY = """elif [[ $code -eq 0 ]]; then
    rmdir "$checkpoints" 2>/dev/null
"""

_ONCE = """
# {faults} has no checkpoints: at the time limit the job ends, and what the script has saved is left.
{command}
"""


def parser() -> Parser:
    """The command line."""
    parser = Parser(
        "matex-tf sbatch",
        "-n N [options] [--setting VALUE ...] (SCRIPT | -m MODULE) [ARGS ...]",
        "Write a job script for Slurm, and submit it with --submit. A training that comes to its time limit saves a "
        "checkpoint and is queued again. Options come before the script.",
        f"docs/slurm.md; {SETTING_PAGES}",
    )
    title = "of sbatch (docs/slurm.md)"
    for flags, value, text in _OPTIONS:
        convert = {"convert": whole(1, "a whole number")} if _WHOLE.fullmatch(value) else {}
        parser.add(title, *flags, dest=_name(flags[-1]), metavar=value, default="", help=text, **convert)
    parser.add(
        title, "--slurm", action="append", dest="more", metavar="TEXT", default=[],
        help="Any other option of sbatch, such as --slurm=--constraint=ib; may be repeated",
    )  # fmt: skip
    title = "job script (docs/slurm.md)"
    parser.add(title, "--log", metavar="FILE", default="", help="What the job prints (default: NAME-JOB.log)")
    parser.add(
        title, "--seconds-to-save", metavar="N", default=120, convert=whole(1, "seconds"),
        help="How many seconds before the time limit the job saves a checkpoint and ends (default: 120)",
    )  # fmt: skip
    parser.add(title, "--file", metavar="FILE", default="", help="Where to write it (default: NAME.sbatch)")
    parser.add(title, "--submit", action="store_true", help="Hand it in too, by sbatch")
    parser.add_settings()
    return parser


def command(given: argparse.Namespace) -> int:
    """Write the job script, and hand it in if that is asked for; returns the exit code."""
    settings = Settings.read(given.flags)
    target = Target.read(given.rest)
    target.require()
    if not target.is_in_a_file:
        raise SettingError(f"{target.name} is not there when the job runs: save the script in a file.")
    if not given.ntasks and not given.ntasks_per_node:
        raise SettingError("how many ranks? Give matex-tf sbatch -n N, or --nodes N --ntasks-per-node M.")
    for option in given.more:
        if not option.startswith("-"):
            raise SettingError(f"--slurm is {option!r}; it must be an option of sbatch, such as --slurm=--exclusive.")
    asked = "faults" in given.flags or "MATEX_FAULTS" in os.environ or "restart" not in registry.faults()
    faults = settings.faults if asked else "restart"
    file = Path(given.file or f"{_stem(target)}.sbatch")
    _write(file, script(given, target, faults, str(file)))
    print(f"matex_tf: the job script is {file}", file=sys.stderr, flush=True)
    return _submit(file) if given.submit else 0


def script(given: argparse.Namespace, target: Target, faults: str, file: str) -> str:
    """The text of the job script.

    Args:
        given: the command line.
        target: what the job runs.
        faults: the setting, "restart" where it was not given.
        file: the name of the job script.
    """
    name = given.job_name or _stem(target)
    each = "%A_%a" if given.array else "%j"
    options = [f"--job-name={name}"]
    for option in [names[-1] for names, _, _ in _OPTIONS if names != ("--job-name",)]:
        if value := getattr(given, _name(option)):
            options.append(f"{option}={value}")
    options += [f"--output={given.log or f'{name}-{each}.log'}", "--open-mode=append"]
    resumes = faults == "restart"
    # A job that goes on without a node must not be ended with it; one without checkpoints would begin anew.
    options += ["--no-kill"] if faults != "abort" else []
    options += ["--requeue", f"--signal=B:USR1@{given.seconds_to_save}"] if resumes else ["--no-requeue"]
    options += given.more
    ident = "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}" if given.array else "$SLURM_JOB_ID"
    flags = {**given.flags, "faults": faults}
    if not resumes:
        run = shlex.join([_launcher(), "run", *settings_module.as_flags(flags), *target.words])
        body = _ONCE.format(faults=faults, command=run)
    else:
        given_dir = flags.pop("checkpoint_dir", "")
        if given_dir:  # the job goes on from there as well where it is handed in once more
            checkpoints = shlex.quote(os.path.abspath(given_dir)) + ("/$SLURM_ARRAY_TASK_ID" if given.array else "")
        else:
            checkpoints = f'"$SLURM_SUBMIT_DIR"/checkpoints-{ident}'
        flags["resume"] = "on"
        words = [_launcher(), "run", *settings_module.as_flags(flags)]
        run = f'{shlex.join(words)} --checkpoint-dir "$checkpoints" {shlex.join(target.words)}'
        body = _RESUMES.format(
            checkpoints=checkpoints,
            whose="Checkpoints" if given_dir else "Checkpoints of this job alone",
            tidy="" if given_dir else _TIDY,
            command=run,
            seconds=given.seconds_to_save,
            resume=EndsToResume.CODE,
            id=ident,
        )
    lines = "\n".join(f"#SBATCH {option}" for option in options)
    return _HEAD.format(options=lines, written_by=_WRITTEN_BY, version=__version__, faults=faults, file=file) + body


def _name(flag: str) -> str:
    return flag.strip("-").replace("-", "_")


def _stem(target: Target) -> str:
    return target.name if target.is_module else Path(target.name).stem


def _launcher() -> str:
    """The full path of `matex-tf`, so that the job needs no environment to be activated."""
    beside = shutil.which("matex-tf", path=os.path.dirname(sys.executable))
    return beside or shutil.which("matex-tf") or os.path.abspath(sys.argv[0])


def _write(file: Path, text: str) -> None:
    try:
        if file.exists() and _WRITTEN_BY not in file.read_text(errors="replace"):
            raise SettingError(f"{file} is there, and not written by matex-tf sbatch: give another name as --file.")
        file.write_text(text)
        file.chmod(0o755)
    except OSError as error:
        raise MatexError(f"{file} cannot be written ({error.strerror}): give another name as --file.") from None


def _submit(file: Path) -> int:
    if not shutil.which("sbatch"):
        raise MissingPackage(
            f"there is no sbatch on PATH: take {file} to a machine of the cluster, and submit it there."
        )
    return subprocess.run(["sbatch", str(file)]).returncode
