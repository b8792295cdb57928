"""What each MPI cannot do, as `tests/launch/test_mpis.py` and the tests of faults have found it.

`matex-tf doctor --mpi` prints it, and docs/launcher.md has the same table, which a test compares.
"""

from __future__ import annotations

from matex_tf.errors import MissingPackage
from matex_tf.launch import mpirun_command

#: The columns: flavour, and the version that was tried.
TRIED = {"Open MPI 5": "5.0.11", "Open MPI 4": "4.1.4", "MPICH": "5.0.2", "Intel MPI": "2021.18"}

#: What is wanted, and for each MPI whether and how it does it.
ABILITIES: dict[str, tuple[str, str, str, str]] = {
    "the answer of one rank": ("yes", "yes", "yes", "yes"),
    "ranks that srun starts": ("--mpi=pmix", "--mpi=pmix", "--mpi=pmi2", "--mpi=pmi2 (note 1)"),
    "matex-tf run in a Slurm job": ("yes", "yes", "yes", "yes"),
    "--faults shrink": ("yes", "no", "no", "no"),
    "--faults restart": ("yes", "yes", "yes", "yes"),
    "a checkpoint at SIGUSR1": ("yes", "yes", "yes", "yes"),
    "exit code of the script": ("yes", "yes", "yes", "not always (note 5)"),
    "exit code, a host lost": ("0 (note 2)", "not tried", "not tried", "not tried"),
    "end of standard input": ("no (note 3)", "yes", "yes", "yes"),
    "no shared memory left": ("yes", "yes", "no (note 4)", "yes"),
}

NOTES = (
    "set I_MPI_PMI_LIBRARY to the libpmi2.so of Slurm.",
    "from mpirun itself; matex-tf run ends with another code than 0.",
    "under mpirun alone; matex-tf run reads the input itself on one machine.",
    "MPICH leaves /dev/shm/mpich_shm_* behind when a rank is killed or ends the job; matex-tf run removes it.",
    "now and then it is 255, with lines about ranks that mpiexec has killed; never 0.",
)


def show() -> int:
    """Print what each MPI can do, and which one this is; returns 0."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="What each MPI can do")
    table.add_column("", overflow="fold")
    for name, version in TRIED.items():
        table.add_column(f"{name} ({version})", overflow="fold")
    for what, cells in ABILITIES.items():
        table.add_row(what, *cells)
    console = Console(highlight=False)
    console.print(table)
    for number, note in enumerate(NOTES, 1):
        console.print(f"note {number}: {note}", markup=False)
    try:
        console.print(f"Here: {mpirun_command.find_mpirun()}.", markup=False)
    except MissingPackage as error:
        console.print(f"Here: {error}", markup=False)
    return 0
