"""What a process has from where it was started, and how another process takes that on.

Environment, directory, umask, limits, cores, priority, signals that are ignored or blocked, and all open files that it
was given: the standard ones, and those of a launcher (PMI_FD).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from matex_tf.core import starting
from matex_tf.launch import resources

#: Beginnings of variables that launchers and batch systems set for each process, and that no import looks at.
LAUNCHERS = (
    *("OMPI_", "OPAL_", "ORTE_", "PMIX_", "PRTE_", "PMI_", "PMI2_", "PALS_", "HYDI_", "HYDRA_", "I_MPI_", "MPI_LOCAL"),
    *("MPIR_", "SLURM_", "SLURMD_", "MATEX_END", "MATEX_STDIN", "MATEX_TERMINAL"),
)
#: What shells set, and no import looks at either.
_SHELL = ("_", "PWD", "OLDPWD", "SHLVL")

_LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
_NAMESPACES = ("mnt", "net", "pid", "uts", "ipc", "user")
#: A step of Slurm, in the cgroup of a task: all of its tasks have its limits.
_STEP = re.compile(r"/job_\d+/step_[^/]+/")
_CGROUPS = "/sys/fs/cgroup"


class Refused(Exception):
    """The other process cannot be what was asked for; the text says why."""


def describe() -> tuple[dict[str, Any], list[int]]:
    """This process: a message, and the descriptors that go with it; the first is that of its directory.

    Raises:
        Refused: it has what cannot be handed on.
    """
    numbers = _inherited()
    mask = os.umask(0o077)
    os.umask(mask)
    said = {
        "environ": dict(os.environ),
        "umask": mask,
        "limits": {name: resource.getrlimit(number) for name, number in _LIMITS.items()},
        "cores": sorted(os.sched_getaffinity(0)),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "user": [*os.getresuid(), *os.getresgid(), *sorted(os.getgroups())],
        "ignored": [number for number in asked_signals() if signal.getsignal(number) == signal.SIG_IGN],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "files": numbers,
        "line": sys.orig_argv,
        "path": list(sys.path),  # imports change it
        "namespaces": namespaces(),
        "cgroup": _cgroup(),
        "parent": os.getppid(),
    }
    return said, [os.open(".", os.O_PATH | os.O_CLOEXEC), *numbers]


def namespaces() -> list[int]:
    """The kernel's numbers of what this process shares with others of its container: network, files, processes…"""
    return [os.stat(f"/proc/self/ns/{name}").st_ino for name in _NAMESPACES]


def difference(wanted: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Why a process like `here`, after it has imported, cannot become one that is `wanted`; empty where it can.

    Args:
        wanted, here: as `describe` gives them.
    """
    for what, words in {
        "user": "the rights of its user or group",
        "namespaces": "a container or namespace of its own",
        "line": "another command line",
        "path": "another path for imports (sys.path)",
    }.items():
        if wanted[what] != here[what]:
            return f"it has {words}"
    theirs, ours = wanted["environ"], here["environ"]
    names = [
        name
        for name in sorted({*theirs, *ours})
        if theirs.get(name) != ours.get(name) and not name.startswith(LAUNCHERS) and name not in _SHELL
    ]
    if names:
        return f"its environment has another {names[0]}, which may be read when TensorFlow is imported"
    return ""


def become(wanted: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """Take on what another process has. Closes the descriptors.

    Args:
        wanted, descriptors: what `describe` has given there.

    Raises:
        Refused: something of it cannot be had here.
    """
    os.setpgid(0, 0)
    _enter_cgroup(wanted["cgroup"])
    directory, *files = descriptors
    os.fchdir(directory)
    os.close(directory)
    _place(files, wanted["files"])
    os.umask(wanted["umask"])
    for name, pair in wanted["limits"].items():
        if resource.getrlimit(_LIMITS[name]) != tuple(pair):
            _try(f"the limit {name}", lambda name=name, pair=pair: resource.setrlimit(_LIMITS[name], tuple(pair)))
    if os.getpriority(os.PRIO_PROCESS, 0) != wanted["priority"]:
        _try("its priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, wanted["priority"]))
    if sorted(os.sched_getaffinity(0)) != wanted["cores"]:
        _try("its cores", lambda: os.sched_setaffinity(0, wanted["cores"]))
        if sorted(os.sched_getaffinity(0)) != wanted["cores"]:
            raise Refused("it has cores that the server of its node may not use")
    os.environ.clear()
    os.environ.update(wanted["environ"])
    os.environ[starting.PARENT] = str(wanted["parent"])
    _take_signals(wanted)
    _take_streams()
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as file:
        file.write(os.path.basename(sys.executable)[:15])


def inheritable() -> list[int]:
    """The open files that a program which this process starts would have."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the directory itself
            if os.get_inheritable(int(name)):
                found.append(int(name))
    return sorted(found)


def _inherited() -> list[int]:
    from matex_tf.features.warm.messages import MOST_FILES

    found = inheritable()
    if len(found) > MOST_FILES - 2:
        raise Refused(f"it was given {len(found)} open files, and can hand on {MOST_FILES - 2}")
    return found


def _place(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Give each open file the number that it shall have. None of those numbers is in use but 0, 1 and 2."""
    import fcntl

    above = max([2, *numbers, *files]) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for file in files]
    for file in files:
        os.close(file)
    taken = [number for number in numbers if number > 2 and _is_open(number)]
    if taken:
        raise Refused(f"the server of its node needs the number {taken[0]} of one of its open files")
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _try(what: str, change: Any) -> None:
    try:
        change()
    except (OSError, ValueError) as error:
        raise Refused(f"{what} cannot be had in the server of its node ({error})") from None


def asked_signals() -> list[signal.Signals]:
    """Signals that whoever starts a process may have it ignore; Python itself ignores SIGPIPE and SIGXFSZ."""
    fixed = {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}
    return sorted({one for one in signal.valid_signals() if isinstance(one, signal.Signals)} - fixed)


def _take_signals(wanted: Mapping[str, Any]) -> None:
    for number in asked_signals():
        handler = signal.SIG_IGN if number in wanted["ignored"] else signal.SIG_DFL
        if number == signal.SIGINT and handler == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
        else:
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, wanted["blocked"])


def _take_streams() -> None:
    """Let Python's streams be what they would be in a process that has started with these files."""
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    if sys.stdin is not None:
        before = sys.stdin
        given = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), before.encoding, before.errors)
        sys.stdin = sys.__stdin__ = given  # type: ignore[misc]


def _cgroup() -> str:
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _enter_cgroup(wanted: str) -> None:
    """Go to a cgroup, whose limits hold for the process that is wanted.

    A batch system may forbid it: then a task of the same step of Slurm will do, whose limits are those of the step. Not
    where there are GPUs, of which each task may have its own.
    """
    here = _cgroup()
    if wanted == here:
        return
    try:
        for line in wanted.splitlines():
            _, kind, path = line.split(":", 2)
            folder = os.path.join(_CGROUPS, kind.removeprefix("name="), path.lstrip("/"))
            with open(os.path.join(folder, "cgroup.procs"), "w", encoding="ascii") as file:
                file.write("0")
    except OSError:
        mine, theirs = _STEP.search(here), _STEP.search(wanted)
        if mine is None or theirs is None or mine[0] != theirs[0] or resources.gpus():
            raise Refused("it has a cgroup of its own, with limits of its own") from None
