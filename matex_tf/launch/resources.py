"""What a job can use: the cores of this machine, the hosts that are given, the nodes of a batch system."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matex_tf.errors import SettingError

#: Variables of a batch system, in which mpirun knows better than this machine's cores what there is.
BATCH_SYSTEMS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE", "COBALT_NODEFILE")

#: How many ranks a batch system (Slurm, PBS, LSF, Grid Engine) has been asked for.
TASKS = ("SLURM_NTASKS", "PBS_NP", "LSB_DJOB_NUMPROC", "NSLOTS")


def give_home(environ: MutableMapping[str, str]) -> None:
    """Set HOME where it is not, to what the system knows or else to TMPDIR: Open MPI does not start without."""
    if not environ.get("HOME"):
        environ.pop("HOME", None)  # empty, it would be taken
        found = os.path.expanduser("~")
        environ["HOME"] = found if os.path.isabs(found) else tempfile.gettempdir()


@dataclass(frozen=True)
class Cores:
    """The cores that this process may use: hardware threads, physical cores, and whether that is the whole machine."""

    threads: int
    physical: int
    whole: bool


def cores() -> Cores:
    """The cores of this machine."""
    try:
        mine = os.sched_getaffinity(0)
    except AttributeError:
        count = os.cpu_count() or 1
        return Cores(count, count, True)
    siblings = set()
    for number in mine:
        path = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        siblings.add(path.read_text().strip() if path.exists() else str(number))
    return Cores(len(mine), len(siblings), len(mine) == os.cpu_count())


def gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The GPUs that the ranks of a node share out, as CUDA_VISIBLE_DEVICES names them: those that it lists where it is
    set, or else all of this machine."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return [device for device in listed.split(",") if device not in ("", "-1")]


def gpu_of(local_rank: int, devices: Sequence[str]) -> str:
    """The GPU of a rank: those of a node are dealt out in turn.

    Args:
        local_rank: its number among the ranks of its node.
        devices: of the node, one at least.
    """
    return devices[local_rank % len(devices)]


#: What the name of a host may look like. One that begins with a hyphen would be an option of ssh.
_HOST = re.compile(r"([\w.]([\w.-]*[\w.])?@)?\w([\w.-]*\w)?\.?", re.ASCII)


def is_host(name: str) -> bool:
    """Whether this can be the name or the address (IPv4) of a host, or USER@ and that."""
    return bool(_HOST.fullmatch(name))


def slots(hosts: str) -> int:
    """The ranks that `--hosts` has room for: 8 for "H1:4,H2:4".

    Raises:
        SettingError: it cannot be read, or has what cannot be the name of a host.
    """
    return sum(counts(hosts))


def counts(hosts: str) -> list[int]:
    """The ranks that each of `--hosts` has room for.

    Raises:
        SettingError: as `slots`.
    """
    found = []
    for host in hosts.split(","):
        name, _, count = host.partition(":")
        if not name or (count and not count.isdigit()) or count == "0":
            raise SettingError(f"--hosts is {hosts!r}; it must look like H1:4,H2:4.")
        if not is_host(name):
            raise SettingError(f"--hosts is {hosts!r}, and {name!r} cannot be the name of a host.")
        found.append(int(count or 1))
    return found


def in_batch_system() -> bool:
    """Whether a batch system has given this job its nodes."""
    return any(name in os.environ for name in BATCH_SYSTEMS)


def default_ranks(hosts: str) -> int:
    """The ranks of a job whose `-n` is missing: the slots of its hosts, its batch system's, or else the cores here."""
    if hosts:
        return slots(hosts)
    for name in TASKS:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return cores().physical
