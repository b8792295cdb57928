"""`matex-tf horovodrun`: the command line of Horovod's launcher, put into the words of `matex-tf run`.

`matex-tf horovodrun --install` puts a command `horovodrun` beside `matex-tf`. It is not installed with the package: pip
would overwrite the `horovodrun` of a real Horovod without a word, and take it away with either of the two.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from matex_tf.cli import run
from matex_tf.errors import SettingError
from matex_tf.job import launching
from matex_tf.job.command_line import Parser

_MADE_BY = "# made by: matex-tf horovodrun --install"

#: Options of horovodrun that have no effect here: those with a value, and those without.
_WITH_VALUE = {
    *("--start-timeout", "--network-interfaces", "--network-interface", "-p", "--ssh-port", "-i"),
    *("--ssh-identity-file", "--cycle-time-ms", "--cache-capacity", "--autotune-log-file"),
    *("--autotune-warmup-samples", "--autotune-steps-per-sample", "--autotune-bayes-opt-max-samples"),
    *("--autotune-gaussian-process-noise", "--stall-check-warning-time-seconds", "--mpi-args"),
    *("--stall-check-shutdown-time-seconds", "--binding-args", "--num-nccl-streams", "--thread-affinity"),
    *("--max-np", "--max-num-proc"),
    *("--gloo-timeout-seconds", "--log-level", "--elastic-timeout", "--reset-limit", "--config-file"),
}
_WITHOUT_VALUE = {
    *("--verbose", "--disable-cache", "--gloo", "--mpi", "--tcp", "--autotune", "--no-autotune"),
    *("--hierarchical-allreduce", "--no-hierarchical-allreduce", "--hierarchical-allgather"),
    *("--no-hierarchical-allgather", "--torus-allreduce", "--no-torus-allreduce", "--timeline-mark-cycles"),
    *("--no-timeline-mark-cycles", "--no-stall-check", "--stall-check", "--mpi-threads-disable"),
    *("--no-mpi-threads-disable", "--log-with-timestamp", "--log-without-timestamp", "--log-hide-timestamp"),
    *("--no-log-hide-timestamp", "-prefix-timestamp", "--prefix-output-with-timestamp"),
}
_NOT_HERE = {
    "--slots-per-host": "give the slots of each host to -H",
    "--host-discovery-script": "a job keeps the hosts that it was started with: give them to -H",
    "--blacklist-cooldown-range": "a job keeps the hosts that it was started with",
    "--jsrun": "start the script with jsrun: jsrun -n 4 python -m matex_tf train.py",
    "-cb": "matex-tf doctor says what there is",
    "--check-build": "matex-tf doctor says what there is",
}
#: Horovod's name of an option, what it takes, and that of `matex-tf run`, which says what it does.
_AS_RUN = (
    (("-np", "--num-proc"), "N", "-n", "Ranks"),
    (("-H", "--hosts"), "H1:4,H2:4", "--hosts", "Hosts, and the ranks that each has room for"),
    (("--timeline-filename",), "FILE", "--trace", "A timeline of the run"),
    (("--min-np", "--min-num-proc"), "N", "--min-ranks", "Ranks without which an elastic script ends, if ranks die"),
    (("--fusion-threshold-mb",), "N", "--bucket-mb", "Megabytes of a bucket"),
    (("--output-filename",), "DIR", "--output", "A directory for what each rank prints"),
)


class _Say(argparse.Action):
    """Add to the words for `matex-tf run`, or to the options that have no effect."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        if self.dest == "ignored":
            namespace.ignored = [*namespace.ignored, option_string]
        elif self.const == "--hostfile":
            namespace.run = [*namespace.run, "--hosts", launching.read_hostfile("--hostfile", values)]
        else:
            namespace.run = [*namespace.run, self.const, *([values] if isinstance(values, str) else [])]


class _Refuse(argparse.Action):
    """Say what to do instead."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        raise SettingError(f"horovodrun {option_string}: {_NOT_HERE[option_string or '']}.")


def parser() -> Parser:
    """The command line."""
    parser = Parser(
        "matex-tf horovodrun",
        "[-np N] [-H HOSTS | --hostfile FILE] [options] python SCRIPT [ARGS ...]",
        "Run a Horovod script on N ranks, as matex-tf run does, and show what every rank prints. Horovod's other "
        "options are taken, and a line says which have no effect.",
        "docs/from-horovod.md",
        refusal="horovodrun has no option {flag}{near}; matex-tf horovodrun --help lists them.",
    )
    parser.set_defaults(run=[], ignored=[])
    job, own = "the job", "horovodrun itself"
    for names, metavar, flag, text in _AS_RUN:
        more = "" if flag in ("-n", "--hosts") else f" (matex-tf run {flag})"
        parser.add(job, *names, action=_Say, dest="run", const=flag, metavar=metavar, help=f"{text}{more}")
    parser.add(
        job, "--hostfile", "-hostfile", action=_Say, dest="run", const="--hostfile", metavar="FILE",
        help="Hosts in a file, with lines such as `H1 slots=4`",
    )  # fmt: skip
    parser.add(
        job, "--dry-run", action=_Say, dest="run", const="--dry-run", nargs=0,
        help="Print the mpirun line instead of running it",
    )  # fmt: skip
    parser.add(own, "-v", "--version", action="store_true", help="Print the version")
    parser.add(
        own, "--install", action="store_true", help="Put a command horovodrun beside matex-tf, unless there is one"
    )
    hidden = argparse.SUPPRESS
    parser.add("", *sorted(_WITH_VALUE), action=_Say, dest="ignored", help=hidden)
    parser.add("", *sorted(_WITHOUT_VALUE), action=_Say, dest="ignored", nargs=0, help=hidden)
    parser.add("", *_NOT_HERE, action=_Refuse, dest="refused", nargs="?", help=hidden)
    return parser


def _translated(given: argparse.Namespace) -> list[str]:
    run = list(given.run)
    if "--min-ranks" in run:
        run += ["--faults", "shrink"]
    if "--output" not in run:
        run += ["--output", "all"]
    return [*run, *_target(given.rest)]


def _target(command: list[str]) -> list[str]:
    """What `matex-tf run` runs: a command without its Python and the flags of that."""
    if not command:
        raise SettingError("there is no command to run: horovodrun -np 4 python train.py")
    name = os.path.basename(command[0])
    if name.startswith("python"):
        command = command[1:]
        while command and command[0] in ("-u", "-B"):
            command = command[1:]
    elif not name.endswith(".py"):
        raise SettingError(
            f"horovodrun can start Python, and was given {command[0]}: start it with mpirun, and with MATEX_TF=1 in "
            "its environment the Python in it becomes a rank."
        )
    if command and command[0].startswith("-") and command[0] != "-m":
        raise SettingError(f"horovodrun cannot give Python the flag {command[0]}; set PYTHON* in the environment.")
    return command


def install() -> str:
    """Put a command `horovodrun` beside this Python; what was done, in words.

    Raises:
        SettingError: there is another one.
    """
    place = Path(sys.executable).with_name("horovodrun")
    found = shutil.which("horovodrun")
    for there in [path for path in (place, Path(found) if found else None) if path and path.exists()]:
        if _MADE_BY not in there.read_text(errors="replace"):
            raise SettingError(f"there is a horovodrun, {there}, which stays; matex-tf horovodrun does the same.")
    place.write_text(
        f"#!{sys.executable}\n{_MADE_BY}\n"
        'import sys\n\nfrom matex_tf.cli.main import main\n\nsys.exit(main(["horovodrun", *sys.argv[1:]]))\n'
    )
    readable = place.stat().st_mode & 0o444
    place.chmod(place.stat().st_mode | readable >> 2)  # whoever may read it may start it
    return f"{place} starts matex-tf horovodrun"


def command(given: argparse.Namespace) -> int:
    """Run a Horovod script as `matex-tf run` does; returns the exit code."""
    if given.version:
        from matex_tf import __version__

        print(f"matex_tf {__version__}, for scripts of Horovod 0.28.1")
        return 0
    if given.install:
        print(install())
        return 0
    translated = _translated(given)
    if given.ignored:
        print(f"horovodrun: these flags have no effect with matex_tf: {' '.join(given.ignored)}", file=sys.stderr)
    as_run = run.parser().parse(translated)
    assert as_run is not None  # nothing that it is given asks for help
    return run.command(as_run)
