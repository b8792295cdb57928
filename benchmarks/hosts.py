"""Several hosts on one machine, to try and to measure what needs a network.

    python benchmarks/hosts.py -n 4 --gbit 1 -- matex-tf run --hosts h1:1,h2:1,h3:1,h4:1 train.py

An emulated host is a set of Linux namespaces: its own network, host name, processes, /dev/shm, /run and System V IPC.
Other files, cores and memory are the machine's. A host lives as long as its first process, and that one as long as a
pipe from this process is open: whatever becomes of this process, the kernel removes the host, all that runs on it and
its network. Nothing is set up outside of the namespaces: no interface, no address, no name in /etc/hosts.

Commands run on a further host, `head`, which the bridge between the hosts belongs to; think of a login node. From there
Open MPI reaches the others through this file as its ssh. Like ssh, it takes nothing of the environment along.
Needs root, and the commands ip and tc (Debian package iproute2), unshare and nsenter (util-linux). Needs no package of
Python's.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

HEAD = "head"
NETWORK = "10.77.0"  # each cluster has a network of its own, so all may use the same addresses

#: Of a fresh login. Open MPI names files in TMPDIR by process id: two hosts must not share it, as they share /tmp.
_LOGIN = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "SHELL": "/bin/sh",
    "TMPDIR": "/run/tmp",
}

#: What a host does first. Arguments: its name, the table of names, directories that it has to itself. An orphan that
#: ends is reaped by the kernel where its parent, here the host's first process, ignores SIGCHLD.
_BOOT = """
set -e
name=$1 table=$2; shift 2
hostname "$name"
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
printf %s "$table" >/run/hosts
mount --bind /run/hosts /etc/hosts
mkdir -m 1777 /run/tmp
for folder; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
ip link set lo up
trap '' CHLD
echo up
exec cat
"""


class HostsError(RuntimeError):
    """Emulated hosts cannot be made here; the message says what is missing."""


def unavailable() -> str:
    """Why this machine cannot emulate hosts, in one sentence; empty where it can."""
    if not sys.platform.startswith("linux"):
        return "emulated hosts need Linux"
    missing = [name for name in ("ip", "tc", "unshare", "nsenter", "setpriv") if not shutil.which(name)]
    if missing:
        return f"emulated hosts need the commands {', '.join(missing)} (Debian: apt-get install iproute2 util-linux)"
    if os.geteuid() != 0:
        return "emulated hosts need root, to make network namespaces"
    tried = subprocess.run(["unshare", "-n", "-u", "-m", "-i", "-p", "-f", "true"], capture_output=True, text=True)
    return f"this machine allows no namespaces: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass(frozen=True)
class Traffic:
    """Bytes that went over the link of a host, with all headers."""

    sent: int
    received: int


class Hosts:
    """Emulated hosts, up from `with` to its end.

    Args:
        count: how many; they are called h1, h2, … and have the addresses 10.77.0.1, 10.77.0.2, …
        gbit: rate of each host's link, in 10^9 bits a second and for each direction; 0 leaves it as fast as it gets.
        private: existing directories of which each host has one of its own, empty at first, besides /dev/shm and /run.
        cores: cores for each host, no two hosts sharing one; 0 lets every host use all.
        clusters: how many clusters the hosts are in, in their order, each as large as the others or one host smaller.
        between: rate of the link of each cluster to the others, in 10^9 bits a second and for each direction; 0 leaves
            it as fast as it gets.

    Attributes:
        names: of the hosts.
        clusters: the number of the cluster of each host, in the order of the names.
        environ: variables with which an mpirun on `head` finds the hosts.

    Raises:
        HostsError: this machine cannot.
    """

    def __init__(
        self,
        count: int,
        gbit: float = 0,
        private: Sequence[str | os.PathLike[str]] = (),
        cores: int = 0,
        clusters: int = 1,
        between: float = 0,
    ):
        if not 1 <= count <= 200:
            raise HostsError(f"{count} hosts were asked for; there can be 1 to 200")
        usable = sorted(os.sched_getaffinity(0))
        if cores * count > len(usable):
            raise HostsError(f"{count} hosts of {cores} cores need {count * cores} cores, and there are {len(usable)}")
        self.names = [f"h{number}" for number in range(1, count + 1)]
        self.clusters = [number * clusters // count for number in range(count)]
        self._between = between
        self._gbit = gbit
        self._private = [os.path.abspath(folder) for folder in private]
        self._cores = {name: usable[i * cores : (i + 1) * cores] for i, name in enumerate(self.names) if cores}
        self._boots: dict[str, subprocess.Popen[str]] = {}
        self._pids: dict[str, int] = {}

    def __enter__(self) -> Hosts:
        if reason := unavailable():
            raise HostsError(reason)
        try:
            for name in (HEAD, *self.names):
                self._boot(name)
            for name in (HEAD, *self.names):
                self._await(name)
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self._pids]:
            self.kill(name)
        for boot in self._boots.values():
            boot.kill()
            boot.communicate()
        self._boots.clear()

    @property
    def environ(self) -> dict[str, str]:
        # Open MPI cuts the value at a comma or colon (another agent), and at an equals sign where it hands it on.
        table = "+".join(
            f"{name}/{self._pids[name]}/{'.'.join(map(str, self._cores.get(name, [])))}" for name in self.up
        )
        return {"PRTE_MCA_plm_ssh_agent": f"{sys.executable} -I {os.path.abspath(__file__)} --ssh {table}"}

    def on(self, name: str = HEAD, folder: str | os.PathLike[str] = ".") -> list[str]:
        """The beginning of a command line whose rest runs on a host, in a folder, with the environment of here."""
        return _enter(self._pids[name], self._cores.get(name, []), os.path.abspath(folder))

    @property
    def up(self) -> list[str]:
        """The names of the hosts that have power."""
        return [name for name in self.names if name in self._pids]

    def address(self, name: str) -> str:
        """The address of a host."""
        return f"{NETWORK}.{254 if name == HEAD else self.names.index(name) + 1}"

    def traffic(self) -> dict[str, Traffic]:
        """What has gone over each host's link so far; subtract two of these."""
        counted = {}
        for name in self.up:
            lines = Path(f"/proc/{self._pids[name]}/net/dev").read_text().splitlines()
            fields = next(line.split(":")[1].split() for line in lines if line.strip().startswith("eth0:"))
            counted[name] = Traffic(sent=int(fields[8]), received=int(fields[0]))
        return counted

    def between(self) -> int:
        """Bytes that clusters have sent to one another so far, with all headers; 0 where there is one cluster."""
        lines = Path(f"/proc/{self._pids[HEAD]}/net/dev").read_text().splitlines()
        return sum(int(line.split(":")[1].split()[8]) for line in lines if line.strip().startswith("up"))

    def processes(self, name: str) -> dict[int, str]:
        """What runs on a host besides its first process: process ids as the machine counts them, and command lines."""
        namespace = "net" if name == HEAD else "pid"
        found = {}
        with contextlib.suppress(OSError, KeyError):
            here = os.readlink(f"/proc/{self._pids[name]}/ns/{namespace}")
            for folder in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    if os.readlink(folder / "ns" / namespace) == here and int(folder.name) != self._pids[name]:
                        state = (folder / "stat").read_text().rpartition(") ")[2][0]
                        if state not in "ZX":  # not by the command line, which is empty amid an exec too
                            words = (folder / "cmdline").read_bytes().split(b"\0")
                            found[int(folder.name)] = b" ".join(words).decode(errors="replace").strip()
        return found

    def kill(self, name: str) -> None:
        """Cut a host's power: it and everything on it is gone when this returns."""
        if name == HEAD:
            for pid in self.processes(HEAD):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pids.pop(name), signal.SIGKILL)
        self._boots[name].wait()

    def unplug(self, name: str) -> None:
        """Pull a host's cable: it goes on, and nobody hears of it any more."""
        self._do(HEAD, "ip", [f"link set {name} down"])

    def plug(self, name: str) -> None:
        """Put the cable back."""
        self._do(HEAD, "ip", [f"link set {name} up"])

    def _boot(self, name: str) -> None:
        # On `head` the processes are the machine's: a signal sent to one reaches it, not a go-between.
        own = ["--net", "--uts", "--mount"] + (["--ipc", "--pid", "--fork", "--mount-proc"] if name != HEAD else [])
        private = ["/dev/shm", *self._private] if name != HEAD else []
        addresses = [f"{self.address(each)} {each}\n" for each in (HEAD, *self.names)]
        table = "".join(["127.0.0.1 localhost\n", *addresses])
        self._boots[name] = subprocess.Popen(
            ["unshare", *own, "sh", "-c", _BOOT, "boot", name, table, *private],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a Ctrl-C in the terminal is for what runs on the hosts
        )

    def _await(self, name: str) -> None:
        boot = self._boots[name]
        assert boot.stdout is not None
        if boot.stdout.readline() != "up\n":
            raise HostsError(f"host {name} does not start: {boot.communicate()[1].strip()}")
        children = Path(f"/proc/{boot.pid}/task/{boot.pid}/children")
        self._pids[name] = boot.pid if name == HEAD else int(children.read_text().split()[0])

    def _connect(self) -> None:
        """A bridge on `head`, and a link from it to each host."""
        # What does not fit into a burst, such as 64 KB and headers of one call to send, is cut up by the CPU.
        burst = max(1 << 17, self._gbit * 1e9 / 8 * 1e-3)
        shape = f"root tbf rate {self._gbit * 1e9:.0f}bit burst {burst:.0f} latency 50ms"
        # Without an address of its own a bridge has that of one of its ports, and another when that one goes.
        links = [
            "link add br0 address 02:00:0a:4d:00:fe type bridge",
            f"addr add {self.address(HEAD)}/24 dev br0",
            "link set br0 up",
        ]
        several = len(set(self.clusters)) > 1
        for number in (
            sorted(set(self.clusters)) if several else []
        ):  # a bridge of its own, and a link to that of `head`
            links += [f"link add cluster{number} type bridge", f"link set cluster{number} up"]
            links += [f"link add up{number} type veth peer name down{number}"]
            links += [f"link set up{number} master cluster{number} up", f"link set down{number} master br0 up"]
        for name, cluster in zip(self.names, self.clusters, strict=True):
            links += [f"link add {name} type veth peer name eth0 netns {self._pids[name]}"]
            links += [f"link set {name} master {f'cluster{cluster}' if several else 'br0'} up"]
        self._do(HEAD, "ip", links)
        if several and self._between:
            slow = f"root tbf rate {self._between * 1e9:.0f}bit burst {1 << 17} latency 200ms"
            ends = [f"{end}{number}" for number in sorted(set(self.clusters)) for end in ("up", "down")]
            self._do(HEAD, "tc", [f"qdisc add dev {end} {slow}" for end in ends])
        for name in self.names:
            self._do(name, "ip", [f"addr add {self.address(name)}/24 dev eth0", "link set eth0 up"])
        if self._gbit:
            self._do(HEAD, "tc", [f"qdisc add dev {name} {shape}" for name in self.names])
            for name in self.names:
                self._do(name, "tc", [f"qdisc add dev eth0 {shape}"])

    def _do(self, name: str, program: str, lines: Sequence[str]) -> None:
        done = subprocess.run(
            ["nsenter", "--target", str(self._pids[name]), "--net", program, "-batch", "-"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise HostsError(f"{program} does not make the network of {name}: {(done.stderr or done.stdout).strip()}")


def _enter(pid: int, cores: Sequence[int], folder: str) -> list[str]:
    pinned = ["taskset", "--cpu-list", ",".join(map(str, cores))] if cores else []
    kept = ["--net", "--uts", "--mount"]
    if os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid"):
        kept += ["--ipc", "--pid"]
    return [*pinned, "nsenter", "--target", str(pid), *kept, f"--wdns={folder}", "--"]


def ssh(table: str, words: Sequence[str]) -> NoReturn:
    """Be the ssh of an mpirun on `head`: run a shell command on a host, with the environment of a fresh login.

    Args:
        table: name/pid/cores of each host, with + between hosts and . between cores.
        words: flags, which are passed over, a host and a command.
    """
    words = list(itertools.dropwhile(lambda word: word.startswith("-"), words))
    hosts = dict(entry.split("/", 1) for entry in table.split("+"))
    name, command = words[0], " ".join(words[1:])
    if name not in hosts:
        sys.exit(f"ssh: Could not resolve hostname {name}: there is {', '.join(hosts)}")
    pid, cores = hosts[name].split("/")
    login = _LOGIN | {key: os.environ[key] for key in ("HOME", "USER", "LOGNAME") if key in os.environ}
    line = _enter(int(pid), [int(core) for core in cores.split(".") if core], login.get("HOME", "/"))
    line += ["/bin/sh", "-c", command]
    code = subprocess.call(line, env=login)
    sys.exit(code if code >= 0 else 255)  # the command was killed, or its host: the connection is lost


@contextlib.contextmanager
def _signals_go_to(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Hand a signal that this process gets to a child, which decides what to make of it."""

    def hand_on(number: int, frame: object) -> None:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the child too
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(hosts: Hosts, command: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Run a command on `head`, to its end; returns its exit code."""
    line = ["setpriv", "--pdeathsig", "TERM", *hosts.on(), *command]
    processes: list[subprocess.Popen[bytes]] = []
    with _signals_go_to(processes):
        processes.append(subprocess.Popen(line, env={**(environ or os.environ), **hosts.environ}))
        code = processes[0].wait()
    return code if code >= 0 else 128 - code


def main() -> int:
    """The command line; returns the exit code of the command."""
    if sys.argv[1:2] == ["--ssh"]:
        ssh(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(
        usage="python benchmarks/hosts.py [-n N] [--gbit RATE] [--cores N] [--private DIR] [--traffic] -- COMMAND ...",
        description="Run a command beside emulated hosts h1, h2, ...",
    )
    parser.add_argument("-n", type=int, default=2, help="hosts; default 2")
    parser.add_argument("--gbit", type=float, default=0, help="rate of each link, in Gbit/s; default: not shaped")
    parser.add_argument("--cores", type=int, default=0, help="cores of each host's own; default: all hosts share all")
    parser.add_argument("--private", action="append", default=[], metavar="DIR", help="a directory of each host's own")
    parser.add_argument("--traffic", action="store_true", help="print at the end what went over each link")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    try:
        with Hosts(options.n, options.gbit, options.private, options.cores) as hosts:
            begin = time.monotonic()
            code = run(hosts, options.command)
            if options.traffic:
                seconds = time.monotonic() - begin
                print(f"hosts: {shlex.join(options.command)} took {seconds:.1f} s", file=sys.stderr)
                for name, bytes_ in hosts.traffic().items():
                    print(f"hosts: {name} sent {bytes_.sent:,} and received {bytes_.received:,} bytes", file=sys.stderr)
            return code
    except HostsError as error:
        print(f"hosts: error: {error}.", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
