"""A Slurm cluster on the emulated hosts of benchmarks/hosts.py: slurmctld on `head`, a slurmd on each host.

    python tests/support/slurm_cluster.py -n 2 -- sbatch --wait job.sh

Each host has a network, a host name and processes of its own, so that a node can lose its power or its cable. All that
Slurm writes is in one directory, which is removed; /etc is left alone. Needs root, and Debian's packages slurm-wlm,
munge and, for `srun --mpi=pmix`, libpmix-dev.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import hosts
from benchmarks.hosts import HEAD, Hosts

_SECONDS_TO_START = 60.0
_PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "scontrol")

#: Without cgroups, which a container may not give; a node that is silent is down after a quarter of a minute.
_CONFIGURATION = """
ClusterName=emulated
SlurmctldHost={head}({address})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdTimeout=15
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=2
ReturnToService=1
KillWait=3
MinJobAge=600
TmpFS=/run/tmp
MailProg=/bin/true
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def unavailable() -> str:
    """Why no cluster can be made here, in one sentence; empty where it can."""
    missing = [name for name in _PROGRAMS if not _program(name)]
    if missing:
        return f"a Slurm cluster needs {', '.join(missing)} (Debian: apt-get install slurm-wlm munge libpmix-dev)"
    return hosts.unavailable()


def _program(name: str) -> str:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin") or ""


class Cluster:
    """A running cluster, from `with` to its end.

    Args:
        count: nodes, called h1, h2, …
        cpus: that Slurm gives to jobs on each node, however many the machine has.

    Attributes:
        hosts: what the nodes are made of; `head` is the node that users log into.
        folder: with Slurm's files and logs.
        environ: variables with which Slurm's commands on `head` find the cluster.
    """

    def __init__(self, count: int, cpus: int = 2):
        self.hosts = Hosts(count)
        self.folder = Path()
        self._cpus = cpus
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)
        try:
            self.hosts.__enter__()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(5)
            daemon.kill()
            daemon.wait()
        self._daemons.clear()
        self.hosts.__exit__()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def environ(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "TMPDIR": "/run/tmp"}  # each host has its own

    def on(self, folder: str | os.PathLike[str] = ".", name: str = HEAD) -> list[str]:
        """The beginning of a command line whose rest runs on a host; give it `environ`."""
        return self.hosts.on(name, folder)

    def ask(self, *words: str) -> str:
        """What a command of Slurm's prints."""
        environ = {**os.environ, **self.environ}
        return subprocess.run(
            [*self.on(), *words],
            env=environ,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            restore_signals=False,  # scontrol has been seen to die of SIGPIPE
        ).stdout

    def states(self) -> dict[str, str]:
        """The state of each node, such as "idle"."""
        lines = self.ask("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return {node: state.rstrip("*") for node, state in (line.split() for line in lines)}

    def down(self, name: str) -> None:
        """Set a node down, as an administrator would: Slurm ends what runs on it."""
        self.ask("scontrol", "update", f"nodename={name}", "state=down", "reason=test")

    def idle(self) -> None:
        """Wait until all nodes can take a job; one that was set down is taken back."""

        def ready() -> bool:
            states = self.states()
            for name, state in states.items():
                if state.startswith("down"):
                    self.ask("scontrol", "update", f"nodename={name}", "state=resume")
            return set(states.values()) == {"idle"}

        self._await("every node", ready)

    def logs(self) -> str:
        """The ends of all logs, for a message."""
        return "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*.log")))

    def _start(self) -> None:
        names = self.hosts.names
        nodes = [f"NodeName={n} NodeAddr={self.hosts.address(n)} CPUs={self._cpus} State=UNKNOWN" for n in names]
        text = _CONFIGURATION.format(
            head=HEAD, address=self.hosts.address(HEAD), folder=self.folder, nodes="\n".join(nodes)
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        own = [f"--{what}={self.folder / f'munge.{what}'}" for what in ("socket", "pid-file", "log-file", "seed-file")]
        self._daemon(HEAD, "munged", "--foreground", "--force", f"--key-file={key}", *own)
        self._await("munged", (self.folder / "munge.socket").exists)
        self._daemon(HEAD, "slurmctld", "-D")
        for name in names:
            (self.folder / f"spool.{name}").mkdir()
            self._daemon(name, "slurmd", "-D", "-N", name)
        self._await("Slurm", lambda: set(self.states().values()) == {"idle"})

    def _daemon(self, host: str, program: str, *words: str) -> None:
        with open(self.folder / f"{program}.{host}.out.log", "wb") as log:
            self._daemons.append(
                subprocess.Popen(
                    [*self.hosts.on(host), _program(program), *words],
                    env={**os.environ, **self.environ},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _await(self, what: str, ready: object) -> None:
        limit = time.monotonic() + _SECONDS_TO_START
        while True:
            with contextlib.suppress(subprocess.SubprocessError):
                if ready():  # type: ignore[operator]
                    return
            if time.monotonic() > limit or any(daemon.poll() is not None for daemon in self._daemons):
                raise hosts.HostsError(f"{what} does not start\n{self.logs()}")
            time.sleep(0.1)


def main(words: Sequence[str]) -> int:
    """Run a command on the login node of a cluster; returns its exit code."""
    count = 2
    if words[:1] == ["-n"]:
        count, words = int(words[1]), words[2:]
    if reason := unavailable():
        print(f"slurm_cluster: error: {reason}.", file=sys.stderr)
        return 2
    with Cluster(count) as cluster:
        return hosts.run(cluster.hosts, words[words[:1] == ["--"] :], {**os.environ, **cluster.environ})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
