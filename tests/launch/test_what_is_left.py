"""What a job leaves behind that was ended from outside: no process, no shared memory, no file of a job that is gone."""

import signal
import sys

import psutil
import pytest
from jobs import LAUNCHER, MEET, Job

pytestmark = pytest.mark.timeout(100)

#: Becomes the launcher on a terminal of its own, as the first process there (`ssh -t`) or after a shell. Says how it
#: ended once that terminal is closed, when the file "close" is there.
ON_A_TERMINAL = """
import os, pty, select, sys, time
process, terminal = pty.fork()
if not process:
    os.execvp(sys.argv[1], sys.argv[1:])
while not os.path.exists("close"):
    if select.select([terminal], [], [], 0.05)[0]:
        os.read(terminal, 10000)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""

#: Ends once its own file is there.
NEXT = """
import os, matex_tf
while matex_tf.rank() == 0 and not os.path.exists(f"watch/matex_tf/jobs/{os.getpid()}.json"):
    pass
"""


def entries(folder):
    """The files of jobs."""
    return list((folder / "watch").rglob("*.json"))


@pytest.mark.parametrize("shell", [False, True])
def test_a_terminal_that_is_closed(shell, tmp_path):
    """The job ends, and takes its shared memory and its file with it."""
    (tmp_path / "script.py").write_text(MEET % (1, "pass"))
    line = [LAUNCHER, "run", "-n", "2", "script.py"]
    line = ["bash", "-c", " ".join(line) + "; exit 3"] if shell else line
    job = Job([sys.executable, "-c", ON_A_TERMINAL, *line], tmp_path, MATEX_WATCH_DIR=str(tmp_path / "watch"))
    job.await_file(tmp_path / "pid")
    (tmp_path / "close").touch()
    code = int(job.end(seconds=20).out)
    assert code == (-signal.SIGHUP if shell else 128 + signal.SIGHUP)
    assert job.left() == []
    assert entries(tmp_path) == []


@pytest.mark.parametrize("stopped", [False, True])
def test_a_rank_that_is_stopped(stopped, tmp_path):
    """mpirun waits for it, is killed in the end, and the ranks with it: what they shared is gone too."""
    (tmp_path / "script.py").write_text(MEET % (1, "os.kill(os.getpid(), signal.SIGSTOP)" if stopped else "pass"))
    job = Job([LAUNCHER, "run", "-n", "2", "script.py"], tmp_path, MATEX_WATCH_DIR=str(tmp_path / "watch"))
    rank = int(job.await_file(tmp_path / "pid"))
    mpirun = psutil.Process(rank).parent()
    mpirun.suspend()
    job.process.terminate()
    assert job.end(seconds=30).code == 128 + signal.SIGTERM
    assert job.left() == []
    assert entries(tmp_path) == []


def test_the_next_job_forgets_those_that_are_gone(tmp_path):
    """A launcher that is killed cannot: the next job does."""
    (tmp_path / "script.py").write_text(MEET % (1, "pass"))
    watched = {"MATEX_WATCH_DIR": str(tmp_path / "watch")}
    job = Job([LAUNCHER, "run", "-n", "2", "script.py"], tmp_path, **watched)
    job.await_file(tmp_path / "pid")
    while not entries(tmp_path):
        assert job.process.poll() is None
    job.process.kill()
    job.end()
    # Open MPI's own directory may stay if its mpirun ends with the launcher; of ours only the job file may.
    assert [path for path in job.left() if "watch" not in path and "/ompi." not in path] == []
    (tmp_path / "next.py").write_text(NEXT)
    assert Job([LAUNCHER, "run", "-n", "2", "next.py"], tmp_path, **watched).end().code == 0
    assert entries(tmp_path) == []


@pytest.mark.parametrize("home", [None, ""])
def test_without_a_home(home, tmp_path):
    """A job runs, as Python does."""
    (tmp_path / "script.py").write_text("import matex_tf\nprint(matex_tf.init().size)\n")
    line = ["env", *(["-u", "HOME"] if home is None else ["HOME="]), LAUNCHER, "run", "-n", "2", "script.py"]
    ended = Job(line, tmp_path).end()
    assert (ended.code, ended.out) == (0, "2\n"), ended.err
