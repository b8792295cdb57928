"""Ranks that a server of their node forks: what they have, how they end, and what ends with what."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from matex_tf.features.warm import messages, process, server

pytestmark = pytest.mark.timeout(90)

RANK = str(Path(__file__).resolve().with_name("forked_rank.py"))

#: Prints what a process has from where it was started.
FACTS = """
import json, resource, signal, sys
mask = os.umask(0)
names = sorted(name for name in os.environ if name.startswith(("SLURM_", "OWN")))
print(json.dumps({
    "directory": os.getcwd(), "umask": mask, "stdin": sys.stdin.read(), "environ": [os.environ[n] for n in names],
    "files": resource.getrlimit(resource.RLIMIT_NOFILE), "core": resource.getrlimit(resource.RLIMIT_CORE),
    "cores": sorted(os.sched_getaffinity(0)), "nice": os.nice(0),
    "given": os.read(int(os.environ["SLURM_FD"]), 9).decode(),
    "ignored": [int(n) for n in (1, 2, 10, 12, 13, 15, 25) if signal.getsignal(n) == signal.SIG_IGN],
    "handler": str(signal.getsignal(2)), "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
    "isatty": sys.stdout.isatty(), "open": sorted(
        int(n) for n in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{n}") and os.get_inheritable(int(n))
    ),
}), flush=True)
print(how, os.getpid(), file=sys.stderr, flush=True)
"""
#: A rank that says who it is, in one write where others write too, and waits to be ended.
WAIT = "import time; os.write(1, f'{how} {os.getpid()} {os.getppid()}\\n'.encode()); time.sleep(60)"


class Ranks:
    """Processes of one launcher, which is this one; a context manager that kills what is left."""

    def __init__(self, *does, imports="", before="", expected=None, environ=None, ranks=None, **options):
        self.processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    RANK,
                    str(len(does) if expected is None else expected),
                    before,
                    imports,
                    json.dumps(does),
                ],
                env={**os.environ, "PMIX_NAMESPACE": self.name(), "PMIX_RANK": str(rank), **(environ or {})},
                **{
                    "stdin": subprocess.PIPE,
                    "stdout": subprocess.PIPE,
                    "stderr": subprocess.PIPE,
                    "text": True,
                    **options,
                },
            )
            for rank in (range(len(does)) if ranks is None else ranks)
        ]

    _count = 0

    @classmethod
    def name(cls):
        return f"job{cls._count}"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        type(self)._count += 1
        for one in self.processes:
            one.kill()
            one.communicate()

    def line(self, rank):
        return self.processes[rank].stdout.readline().split()

    def end(self, given=""):
        """The code, output and errors of each."""
        found = [one.communicate(given, timeout=60) for one in self.processes]
        return [(one.returncode, *texts) for one, texts in zip(self.processes, found, strict=True)]


def gone(pid, seconds=20):
    """Whether a process ends in time."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def gone_from(folder, seconds=20):
    """Whether a directory becomes empty in time."""
    limit = time.monotonic() + seconds
    while any(folder.iterdir()) and time.monotonic() < limit:
        time.sleep(0.02)
    return not any(folder.iterdir())


def test_what_a_process_has(tmp_path):
    """A forked rank has all that one has which Python has started: in a directory with spaces, with files that it was
    given, and with an environment of 300 KB."""
    folder = tmp_path / "a b"
    folder.mkdir()

    def facts(expected):
        inner, outer = os.pipe()
        os.write(outer, b"from PMI")
        os.set_inheritable(inner, True)

        def begin():
            os.umask(0o037)
            resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1000))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
            os.nice(3)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])

        long = {
            "SLURM_LONG": "x" * 100_000,
            "OWN": "y" * 100_000,
            "OWN2": "\udcff" + "z" * 100_000,
            "SLURM_FD": str(inner),
        }
        with Ranks(FACTS, expected=expected, environ=long, cwd=folder, preexec_fn=begin, pass_fds=[inner]) as ranks:
            ((code, out, err),) = ranks.end("what was typed")
        os.close(inner)
        os.close(outer)
        assert code == 0, err
        return json.loads(out), err.split()[0]

    (mine, how), (theirs, other) = facts(1), facts(0)
    assert (how, other) == ("forked", "itself")
    assert mine == theirs


@pytest.mark.parametrize(
    "does, code",
    {
        "0": ("sys.exit(0)", 0),
        "3": ("sys.exit(3)", 3),
        "exception": ("raise ValueError('no')", 1),
        "os._exit": ("os._exit(77)", 77),
        "SIGKILL": ("os.kill(os.getpid(), 9)", -9),
        "SIGSEGV": ("os.kill(os.getpid(), 11)", -11),
        "SIGTERM": ("os.kill(os.getpid(), 15)", -15),
    }.values(),
)
def test_how_it_ends(does, code):
    """What was started ends as the forked rank does, with its output; others of the node are not touched."""
    with Ranks(f"print(how, flush=True)\n{does}", "print(how)") as ranks:
        ended = ranks.end()
    assert [one[:2] for one in ended] == [(code, "forked\n"), (0, "forked\n")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_are_handed_on(number):
    does = f"import signal; signal.signal({int(number)}, lambda *_: os._exit(5)); {WAIT}"
    # What runs the tests may ignore SIGINT, as a shell lets what it starts in the background.
    with Ranks(does, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL)) as ranks:
        assert ranks.line(0)[0] == "forked"
        ranks.processes[0].send_signal(number)
        assert ranks.end()[0][0] == 5


def test_a_signal_that_is_ignored(tmp_path):
    """As with nohup."""
    with Ranks(WAIT, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as ranks:
        _, pid, _ = ranks.line(0)
        ranks.processes[0].send_signal(signal.SIGHUP)
        ranks.processes[0].send_signal(signal.SIGTERM)
        assert ranks.end()[0][0] == -signal.SIGTERM
        assert gone(pid)


def test_a_killed_rank():
    """The launcher kills what it has started: the forked rank ends too, the other goes on."""
    with Ranks(WAIT, "import time; time.sleep(1); print(how)") as ranks:
        _, pid, server = ranks.line(0)
        ranks.processes[0].kill()
        assert gone(pid)
        assert ranks.processes[1].communicate(timeout=30)[0] == "forked\n"
        assert gone(server)


def test_a_killed_server():
    """Its ranks end with it, by SIGKILL as far as the launcher sees, and say why."""
    with Ranks(WAIT, WAIT) as ranks:
        lines = [ranks.line(rank) for rank in range(2)]
        os.kill(int(lines[0][2]), signal.SIGKILL)
        ended = ranks.end()
    assert [code for code, _, _ in ended] == [-signal.SIGKILL] * 2
    assert all("the server of this node" in err and "--warm-imports" in err for _, _, err in ended)
    assert all(gone(pid) for _, pid, _ in lines)


def test_the_launcher_is_gone(tmp_path):
    """Ranks and server end with it."""
    words = [sys.executable, RANK, "2", "", "", json.dumps([WAIT] * 2)]
    launcher = f"""
import os, subprocess, sys
for rank in range(2):
    subprocess.Popen({words!r}, env={{**os.environ, "PMIX_RANK": str(rank)}})
sys.stdin.read()
"""
    job = subprocess.Popen([sys.executable, "-c", launcher], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    lines = [job.stdout.readline().split() for _ in range(2)]
    job.kill()
    left = [pid for how, *pids in lines for pid in pids if not gone(pid)]
    job.communicate()
    assert [how for how, _, _ in lines] == ["forked"] * 2
    assert not left


def test_the_server_ends_with_its_last_rank(tmp_path, monkeypatch):
    """And leaves no file, in a TMPDIR whose name is longer than the address of a socket can be."""
    folder = tmp_path / ("a long name " * 15)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    with Ranks("print(how, os.getppid())", "print(how, os.getppid())") as ranks:
        (_, first, _), (_, second, _) = ranks.end()
    assert first.split() == second.split() and first.split()[0] == "forked"
    assert gone(first.split()[1])
    assert not list(folder.iterdir())


def test_another_environment():
    """A variable that may be read at import: that rank imports for itself, and the reason names the variable."""
    with Ranks("print(how)", "print(how)", ranks=[0]) as ranks:
        other = subprocess.run(
            [sys.executable, RANK, "2", "", "", json.dumps(["print(how)"] * 2)],
            env={**os.environ, "PMIX_NAMESPACE": Ranks.name(), "PMIX_RANK": "1", "TF_ENABLE_ONEDNN_OPTS": "0"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        hows = sorted([ranks.end()[0][1], other.stdout])
    assert hows[0] == "forked\n"
    assert "TF_ENABLE_ONEDNN_OPTS" in hows[1] and "refused" in hows[1]


@pytest.mark.parametrize(
    "imports, reason",
    {
        "fails": ("raise ImportError('no such thing')", "no such thing"),
        "threads": (
            "import threading, time; threading.Thread(target=time.sleep, args=[9], daemon=True).start()",
            "1 threads",
        ),
        "ends": ("import os; os._exit(0)", "the server of this node"),
        "hangs": ("import time; time.sleep(60)", "does not answer"),
    }.values(),
)
def test_what_cannot_be_forked(imports, reason, tmp_path, monkeypatch):
    """Each rank goes on by itself, and knows why. No file is left."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = "from matex_tf.features.warm import server; server.LOAD_SECONDS = 2"
    with Ranks("print(how)", "print(how)", imports=imports, before=before) as ranks:
        ended = ranks.end()
    assert all(code == 0 and "refused" in out and reason in out for code, out, _ in ended), ended
    assert gone_from(tmp_path)


def test_openblas(tmp_path):
    """Its threads are no reason: they end before a fork. Multiplying works in the ranks."""
    does = "import numpy as np; a = np.ones((600, 600)); print(how, (a @ a).sum())"
    with Ranks(
        does, does, imports="import numpy", environ={"OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "4"}
    ) as ranks:
        ended = ranks.end()
    assert [one[:2] for one in ended] == [(0, f"forked {600.0**3}\n")] * 2


def test_messages_one_after_the_other():
    """Each is read to its end, and not further; a message that is cut short is an error."""
    here, there = socket.socketpair()
    with here, there:
        messages.send(here, {"refused": "x" * 100_000}, [0])
        messages.send(here, {"status": 3})
        here.send(b"\0" * 5)
        here.close()
        said, files = messages.receive(there)
        assert len(said["refused"]) == 100_000 and os.fstat(files[0]) == os.fstat(0)
        os.close(files[0])
        assert messages.receive(there) == ({"status": 3}, [])
        with pytest.raises(ConnectionResetError):
            messages.receive(there)


def test_an_answer_before_the_sender_goes_on():
    """The server has read a message, has answered and closed, before who has sent it does anything else."""
    here, there = socket.socketpair()

    class Answered(socket.socket):
        def sendmsg(self, *args):
            sent = super().sendmsg(*args)
            assert messages.receive(there)[0] == {"wanted": 1}
            messages.send(there, {"refused": "no"})
            there.close()
            return sent

    with Answered(fileno=here.detach()) as sender:
        messages.send(sender, {"wanted": 1})
        assert messages.receive(sender) == ({"refused": "no"}, [])


def test_a_process_that_cannot_be_had():
    """The forked process finds out, whatever it is, and who has asked goes on: here as it takes on a limit."""
    before = "meeting_point.process._try = lambda what, change: 1 / 0"
    imports = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))"
    with Ranks("print(how)", "print(how)", imports=imports, before=before) as ranks:
        ended = ranks.end()
    assert [(code, out) for code, out, _ in ended] == [(0, "refused: division by zero\n")] * 2


def test_a_directory_that_others_can_change(tmp_path, monkeypatch):
    """Is not used: who could put a socket there would be asked for the rank."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = "from matex_tf.launch import lifetime; os.fchmod(meeting_point._folder(lifetime.launcher()), 0o777)"
    with Ranks("print(how)", before=before) as ranks:
        ((_, out, _),) = ranks.end()
    assert out.startswith("refused: others than you can write to"), out


def test_another_user(tmp_path, monkeypatch):
    """Who asks must be this user: the kernel says who that is."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as asking:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        asking.connect(str(tmp_path / "socket"))
        made = server.Server(listener, lambda wanted: "")
        monkeypatch.setattr(server.os, "geteuid", lambda: os.getuid() + 1)
        assert made._accept() is None
        assert asking.recv(1) == b"" and made._came == 0


def test_a_cgroup_of_its_own():
    """Tasks of one step of Slurm have one set of limits; others have not."""
    step = process._STEP
    assert step.search("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_1\n")[0] == "/job_7/step_0/"
    assert step.search("0::/user.slice/session-3.scope\n") is None
    with contextlib.suppress(OSError):
        assert process._cgroup() == Path("/proc/self/cgroup").read_text()
