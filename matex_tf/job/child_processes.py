"""Processes that a script starts are not ranks: they get an environment without what makes a process one.

With a rank's variables a child that imports mpi4py joins the job as a second process of that rank, and takes it down or
waits for ever; an mpirun in a script refuses to start. MPI has read them once it has started. From then on they are not
in the environment of the process itself, which is what children get: those of `os.system`, `subprocess`,
`multiprocessing`, and of C and C++. Nor are those of MPI and Slurm in `os.environ` (`hide`), where libraries would take
the process for one of several. A script that asks for them by name finds them there, and always finds our own, which no
library knows; where it hands on `os.environ` or a copy of it by itself, they are taken out on the way. Children that
`fork` makes have `os.environ` as their parent had it.

`subprocess.Popen` waits until its child closes a pipe, which happens as the program begins. A process that another
thread forks meanwhile has that pipe too, and Popen waits for its end. ClearML forks so, and it hung in one of three
ranks on a busy machine. So no thread forks while another one starts a program.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import wrapt

from matex_tf.core import starting
from matex_tf.state import run_state

#: Those among them that are the user's, where no launcher of ours says which are: parameters, where an MPI is
#: installed, and what builds programs.
_USERS = ("_MCA_", "_PREFIX", "ALLOW_RUN_AS_ROOT")
_COMPILERS = ("OMPI_CC", "OMPI_CXX", "OMPI_FC", "OMPI_CFLAGS", "OMPI_CXXFLAGS", "OMPI_FCFLAGS", "OMPI_LDFLAGS")
#: Parameters that Open MPI (4 and 5) sets by itself.
_PARAMETERS = (
    *("OMPI_MCA_PREFIXES", "OMPI_MCA_cpu_type", "OMPI_MCA_initial_wdir", "OMPI_MCA_num_procs", "OMPI_MCA_ess"),
    *("OMPI_MCA_orte_", "OMPI_MCA_pmix", "OMPI_MCA_shmem_RUNTIME", "OMPI_MCA_mpi_ft_enable"),
    *("OPAL_MCA_PREFIXES", "PMIX_MCA_PREFIXES", "PRTE_MCA_PREFIXES"),
)
#: Variables by which libraries take a process of Slurm for one of several.
_OF_SLURM = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_STEP_NUM_TASKS"),
    *("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS", "SLURM_NPROCS"),
)
#: What the launcher tells ranks.
_OURS = ("MATEX_TF", "MATEX_STDIN", "MATEX_RESTARTS", "MATEX_DIED", "MATEX_END", "MATEX_PARENT")


class _Children:
    """Of a run.

    Attributes:
        taken: what children do not get of the environment.
        of_the_user: the names of what the user has set, if our launcher says so.
        starting: held by a thread that starts a program, and by one that forks; a program may be started by what runs
            before a fork.
    """

    def __init__(self) -> None:
        self.taken: dict[str, str] = {}
        self.of_the_user: Sequence[str] | None = None
        self.starting = threading.RLock()


def _is_ours(name: str) -> bool:
    return name in _OURS or name.startswith(starting.RECORD)


def of_a_rank(name: str) -> bool:
    """Whether a variable of this name makes a process a rank, or is a parameter that a launcher has set."""
    if _is_ours(name):
        return True
    if (of_the_user := run_state.part(_Children).of_the_user) is not None:
        return name.startswith(starting.BEGINNINGS) and name not in of_the_user
    if name.startswith(_PARAMETERS):
        return True
    if not name.startswith(starting.BEGINNINGS) or name in _COMPILERS:
        return False
    return not any(part in name for part in _USERS)


def part() -> None:
    """From now on children of this process are none of the job. To be called once MPI has started."""
    children = run_state.part(_Children)
    if starting.OF_THE_USER in os.environ:
        children.of_the_user = os.environ.pop(starting.OF_THE_USER).split()
    if not children.taken:
        wrapt.wrap_function_wrapper(subprocess, "Popen.__init__", _popen)
        done = children.starting.release
        os.register_at_fork(before=children.starting.acquire, after_in_parent=done, after_in_child=done)
        for name, place in (("execve", 2), ("posix_spawn", 2), ("posix_spawnp", 2)):
            if hasattr(os, name):
                wrapt.wrap_function_wrapper(os, name, _with_env_at(place))
    for name in [name for name in os.environ if of_a_rank(name)]:
        children.taken[name] = os.environ[name]
        os.unsetenv(name)  # and not del os.environ[name]: the script still finds it there


def hide() -> None:
    """From now on the script and its libraries do not find what mpirun or srun has told this process, and take it for
    the only one. Ours stay: we read them until the end. To be called last of all before the script."""
    for name in [name for name in os.environ if (of_a_rank(name) and not _is_ours(name)) or name in _OF_SLURM]:
        run_state.part(starting.Hidden)[name] = os.environ.pop(name)


def clean(environ: Any) -> Any:
    """An environment that a script gives to a child, without what this rank has of the launcher."""
    if not isinstance(environ, Mapping):
        return environ
    taken = run_state.part(_Children).taken
    return {name: value for name, value in environ.items() if taken.get(_text(name)) != _text(value)}


def _text(word: Any) -> Any:
    return os.fsdecode(word) if isinstance(word, (bytes, os.PathLike)) else word


def _popen(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    place = 10  # of `env` in subprocess.Popen
    if len(args) > place:
        args = _cleaned(args, place)
    elif kwargs.get("env") is not None:
        kwargs = {**kwargs, "env": clean(kwargs["env"])}
    # With `preexec_fn` Python itself forks, in the order in which others that run before a fork take their locks.
    with contextlib.nullcontext() if kwargs.get("preexec_fn") else run_state.part(_Children).starting:
        return wrapped(*args, **kwargs)


def _with_env_at(place: int) -> Any:
    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if "env" in kwargs:
            return wrapped(*args, **{**kwargs, "env": clean(kwargs["env"])})
        return wrapped(*_cleaned(args, place), **kwargs)

    return wrapper


def _cleaned(args: Any, place: int) -> tuple[Any, ...]:
    return tuple(clean(arg) if number == place else arg for number, arg in enumerate(args))
