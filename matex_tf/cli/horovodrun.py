"""`matex-tf horovodrun`: the command line of Horovod's launcher, put into the words of `matex-tf run`.

`matex-tf horovodrun --install` puts a command `horovodrun` beside `matex-tf`. It is not installed with the package: pip
would overwrite the `horovodrun` of a real Horovod without a word, and take it away with either of the two.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from matex_tf.errors import SettingError
from matex_tf.job import suggestions
from matex_tf.launch import mpirun_command

USAGE = """usage: horovodrun [-np N] [-H H1:4,H2:4 | --hostfile FILE] [options] python SCRIPT [ARGS ...]
       matex-tf horovodrun --install

Run a Horovod script on N ranks; a door to matex-tf run, which shows what every rank prints.

  -np N, --num-proc N             ranks
  -H H1:4,H2:4, --hosts           hosts, and the ranks that each has room for
  --hostfile FILE                 the same in a file, with lines such as `H1 slots=4`
  --timeline-filename FILE        a timeline of the run (matex-tf run --trace)
  --min-np N                      ranks without which an elastic script ends, where ranks die
                                  (matex-tf run --faults shrink --min-ranks)
  --fusion-threshold-mb N         megabytes of a bucket (matex-tf run --bucket-mb)
  --output-filename DIR           a directory for what each rank prints (matex-tf run --output)
  -v, --version                   the version
  --dry-run                       print the mpirun line instead of running it
  --install                       put a command horovodrun beside matex-tf, unless there is one

Horovod's other options are taken, and a line says which have no effect."""

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
_ALONE = ("-h", "--help", "-v", "--version", "--install")
_AS_RUN = {
    "--min-np": "--min-ranks",
    "--min-num-proc": "--min-ranks",
    "-np": "-n",
    "--num-proc": "-n",
    "-H": "--hosts",
    "--hosts": "--hosts",
    "--timeline-filename": "--trace",
    "--fusion-threshold-mb": "--bucket-mb",
    "--output-filename": "--output",
}


def translate(words: list[str]) -> tuple[list[str], list[str]]:
    """The words for `matex-tf run`, and the options that have no effect.

    Raises:
        SettingError: an option that is not Horovod's or cannot be had here, or a command that is not Python.
    """
    words = list(words)
    run: list[str] = []
    ignored: list[str] = []
    while words and words[0].startswith("-"):
        word, equals, value = words.pop(0).partition("=")
        if word == "--":
            break
        if word in _WITHOUT_VALUE:
            ignored.append(word)
        elif word == "--dry-run":
            run.append(word)
        elif word in _NOT_HERE:
            raise SettingError(f"horovodrun {word}: {_NOT_HERE[word]}.")
        elif word in _AS_RUN or word in _WITH_VALUE or word in ("-hostfile", "--hostfile"):
            if not equals:
                if not words:
                    raise SettingError(f"{word} needs a value.")
                value = words.pop(0)
            if word in _WITH_VALUE:
                ignored.append(word)
            elif word in _AS_RUN:
                run += [_AS_RUN[word], value]
            else:
                run += ["--hosts", read_hostfile(value)]
        else:
            known = [*_AS_RUN, *_WITH_VALUE, *_WITHOUT_VALUE, *_NOT_HERE, *_ALONE, "--hostfile", "--dry-run"]
            near = suggestions.nearest(word, sorted(known))
            raise SettingError(f"horovodrun has no option {word}{near}; matex-tf horovodrun --help lists them.")
    if "--min-ranks" in run:
        run += ["--faults", "shrink"]
    if "--output" not in run:
        run += ["--output", "all"]
    return [*run, *_target(words)], ignored


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


def read_hostfile(path: str) -> str:
    """Hosts and slots as `-H` has them, from lines such as `H1 slots=4` or `H1:4`.

    Raises:
        SettingError: it cannot be read, has no host, or one that cannot be.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise SettingError(f"--hostfile {path} cannot be read: {error.strerror}.") from None
    hosts = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if not mpirun_command.is_host(words[0].partition(":")[0]):
            raise SettingError(f"--hostfile {path}, line {number}: {words[0]!r} cannot be the name of a host.")
        counts = [word.partition("=")[2] for word in words[1:] if word.startswith("slots=")]
        hosts.append(f"{words[0]}:{counts[0]}" if counts else words[0])
    if not hosts:
        raise SettingError(f"--hostfile {path} names no host.")
    return ",".join(hosts)


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


def command(words: list[str], run: Callable[[list[str]], int]) -> int:
    """`matex-tf horovodrun`; `run` is `matex-tf run`. Returns the exit code."""
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else 2
    if words[0] in ("-v", "--version"):
        from matex_tf import __version__

        print(f"matex_tf {__version__}, for scripts of Horovod 0.28.1")
        return 0
    if words == ["--install"]:
        print(install())
        return 0
    translated, ignored = translate(words)
    if ignored:
        print(f"horovodrun: no effect with matex_tf: {' '.join(ignored)}", file=sys.stderr)
    return run(translated)
