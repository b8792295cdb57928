"""What a process can tell from its environment of how it was started, and one order of sets on all ranks.

Imports nothing that takes time: Python may have to be started again, with `PYTHONHASHSEED` set. Without it each process
hashes text in a way of its own, so that a vocabulary that is numbered in the order of a set is another on each rank.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence

from matex_tf.state import run_state

#: Environment variables that a launcher sets for each process of an MPI job.
MPI_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")

HASH_SEED = "PYTHONHASHSEED"
#: The same for all jobs, so that ranks need not ask one another, and a job that goes on from a checkpoint has it too.
OUR_HASH_SEED = "0"

#: In the environment of a rank that a server has forked (`Feature.enters`): the parent of what stands in for it.
PARENT = "MATEX_PARENT"

#: In the environment of a script whose training is recorded, to be held beside that on one rank: the directory for
#: that. Names that begin with it are for what records (`features.registry.Feature`).
RECORD = "MATEX_RECORD"

#: Beginnings of names that launchers and MPI libraries set for a rank: Open MPI, PMIx, PRRTE, Slurm and Hydra.
BEGINNINGS = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDI_", "MPI_LOCAL", "ORTE_", "OPAL_")

#: In the environment of the ranks of `matex-tf run`: the names of variables of MPI that the user has set.
OF_THE_USER = "MATEX_OF_THE_USER"

#: Text whose hash shows whether two processes hash alike.
_PROBE = "the order of a set"


class Hidden(dict[str, str]):
    """Of a run: what was taken out of the environment: a script would take it for its own (`job.child_processes`)."""


def rank_in_environment() -> int | None:
    """The rank that the launcher has given this process, known before MPI has started."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return None


def take_stdin() -> None:
    """On rank 0 of a job of `matex-tf run`, read what the launcher was given to read; see `mpirun_process.run`.

    To be called before the process is in a user namespace, from where it cannot open what the launcher has open.
    """
    begin, _, path = os.environ.pop("MATEX_STDIN", "").partition(":")
    if path and rank_in_environment() == 0:
        given_to_job = os.open(path, os.O_RDONLY)
        os.dup2(given_to_job, 0)
        os.close(given_to_job)
        with contextlib.suppress(OSError):  # a pipe has no place
            os.lseek(0, int(begin), os.SEEK_SET)


def given(name: str) -> str | None:
    """A variable of the launcher's, as this process was started with it."""
    return os.environ.get(name, run_state.part(Hidden).get(name))


def started_by_mpi(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher (mpirun, srun) started this process as one of an MPI job."""
    return any(name in environ for name in MPI_VARIABLES)


def recorded() -> bool:
    """Whether what the script computes is written down, to be held beside what another run of it computes."""
    return RECORD in os.environ


def parent(environ: Mapping[str, str] = os.environ) -> int:
    """The process that started this rank. Its own parent may be the server that has forked it."""
    return int(environ.get(PARENT, "") or os.getppid())


def size_in(environ: Mapping[str, str]) -> int:
    """The number of ranks that the launcher says it started; 1 where it does not say."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return 1


def local_size_in(environ: Mapping[str, str]) -> int:
    """The number of ranks of this node that mpirun says it started; 0 where it does not say."""
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return 0


def alone_in(environ: Mapping[str, str]) -> bool:
    """Whether the launcher says that it started one rank."""
    return size_in(environ) == 1 and "OMPI_COMM_WORLD_SIZE" in environ


def settle_hashes(environ: MutableMapping[str, str]) -> bool:
    """Set `PYTHONHASHSEED` where it is not, or is "random"; whether that was so."""
    if environ.get(HASH_SEED, "") not in ("", "random"):
        return False
    environ[HASH_SEED] = OUR_HASH_SEED
    return True


def start_again_with_hash_seed(line: Sequence[str]) -> None:
    """Where text would be hashed as in no other process, start Python again. Before MPI starts.

    One rank too: a job may go on with another number of them.

    Args:
        line: the command line of this interpreter, `sys.orig_argv`.
    """
    if sys.executable and not sys.flags.ignore_environment and settle_hashes(os.environ):
        os.execv(sys.executable, [sys.executable, *line[1:]])


def hash_mark() -> int:
    """A number that is the same in processes that hash text alike."""
    return hash(_PROBE)
