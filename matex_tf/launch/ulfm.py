"""What mpirun of Open MPI 5 is told so that ranks go on when others die (ULFM).

On several hosts each rank listens for the heartbeats of the one before it, and takes it for dead after a silence; that
is how a host without power or network is found out. Its ranks are found one after the other, the first after one
silence, each further one after two: that is what Open MPI gives the request for heartbeats to get there.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from matex_tf.launch import loopback

#: Seconds in which all ranks of a silent host are found dead where `--stall-abort-seconds` does not say.
SILENT_HOST_SECONDS = 30.0
#: A silence below this may be a core that others use.
SHORTEST_SILENCE = 1.0


def options(elsewhere: bool, ranks_a_host: int, seconds: float) -> list[str]:
    """Flags for mpirun.

    Args:
        elsewhere: whether ranks may be on other hosts.
        ranks_a_host: the most that one host has; 0 where that is not known.
        seconds: in which a silent host counts as dead; 0 for `SILENT_HOST_SECONDS`.
    """
    # Without Open MPI's own shared memory: its files stay behind where a rank is killed.
    found = ["--with-ft", "ulfm", "--mca", "btl", "self,tcp"]
    if not elsewhere:
        return [*found, "--mca", "btl_tcp_if_include", loopback.INTERFACE]
    wanted = silence(ranks_a_host, seconds)
    for name, value in {
        "mpi_ft_detector": "1",
        "mpi_ft_detector_thread": "1",  # a rank that computes for long is not dead
        "mpi_ft_detector_timeout": f"{wanted:g}",
        "mpi_ft_detector_period": f"{wanted / 5:g}",
        # Ranks tell one another who is dead. Through mpirun the news stop at the host that is out of reach.
        "mpi_ft_propagator_with_rbcast": "1",
    }.items():
        found += ["--mca", name, value]
    # mpirun itself would end the job over a host that is silent.
    return [*found, "--prtemca", "oob_tcp_keepalive_time", "0"]


def agent_options(hosts: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Flags with which mpirun starts its daemons by `agent`, so that it does not end the job over a lost one.

    Args:
        hosts: as given to `--hosts`; where it is empty, only Slurm's nodes are known how to reach.
        environ: in which the user may have named an agent of his own instead of ssh.
    """
    if "SLURM_JOB_ID" in environ and shutil.which("srun"):
        start = ["srun"]
    elif hosts:
        start = environ.get("PRTE_MCA_plm_ssh_agent", "ssh").partition(":")[0].split()
    else:
        return []
    words = [sys.executable, "-I", "-S", str(Path(__file__).with_name("agent.py")), str(len(start)), *start]
    # All daemons report to mpirun itself: one that others report to must not be lost.
    found = [
        "--prtemca",
        "plm",
        "ssh",
        "--prtemca",
        "plm_ssh_no_tree_spawn",
        "1",
        "--prtemca",
        "rml_base_radix",
        "4096",
    ]
    return [*found, "--prtemca", "plm_ssh_agent", " ".join(words)]


def silence(ranks_a_host: int, seconds: float) -> float:
    """The seconds without a heartbeat after which a rank counts as dead. Args: see `options`."""
    return max(SHORTEST_SILENCE, (seconds or SILENT_HOST_SECONDS) / (2 * (ranks_a_host or 2) - 1))
