"""What is left of a job when its launcher is killed, and has no time to end the rest: nothing."""

import shlex
import sys

import psutil
import pytest
from jobs import LAUNCHER, Job
from on_hosts import left
from there import case

from benchmarks.hosts import Hosts, unavailable
from matex_tf.launch import mpirun_command

pytestmark = pytest.mark.timeout(150)

#: The ranks meet for ever. One has a process of its own.
MEET = """
import os, subprocess, time
import matex_tf
world = matex_tf.init()
world.barrier("start")
if world.rank == 1:
    subprocess.Popen(["sleep", "1000"])
    open("pid", "w").write(str(os.getpid()))
while True:
    world.barrier("take a step")
    time.sleep(0.01)
"""


def begin(folder, *line, **environ) -> Job:
    """A job whose ranks meet."""
    (folder / "script.py").write_text(MEET)
    job = Job(line, folder, **environ)
    job.await_file(folder / "pid", 60)
    return job


def processes(job: Job) -> tuple[psutil.Process, psutil.Process]:
    """The launcher of a job, and its mpirun."""
    found = [process for process in job.processes() if LAUNCHER in process.cmdline()]
    launcher = next(process for process in found if process.name() != "nsenter")
    return launcher, launcher.children()[0]


def processes_left(job: Job) -> list[str]:
    """What still runs after half a minute. Open MPI 5.0.11 sometimes forgets its temporary files."""
    psutil.wait_procs(job.processes(), 30)
    return [str(process) for process in job.processes()]


@pytest.mark.parametrize("faults", ["abort", case("restart", "restart")])
def test_the_launcher_is_killed(tmp_path, faults):
    """`kill -9` of matex-tf run ends mpirun, the ranks and what these have started."""
    job = begin(tmp_path, LAUNCHER, "run", "-n", "2", "--faults", faults, "script.py")
    processes(job)[0].kill()
    assert processes_left(job) == []
    job.end(10)


@pytest.mark.parametrize("faults", ["abort", "shrink"])
def test_mpirun_is_killed(tmp_path, faults):
    """`kill -9` of mpirun ends the ranks, their files, and the launcher, whose exit code says it."""
    job = begin(tmp_path, LAUNCHER, "run", "-n", "2", "--faults", faults, "script.py")
    processes(job)[1].kill()
    assert job.end(10).code == 137
    assert job.left() == []


def test_mpirun_of_a_shell_is_killed(tmp_path):
    """Without the launcher, and with a shell between mpirun and each rank."""
    shell = f"{shlex.quote(sys.executable)} -m matex_tf script.py; exit $?"
    job = begin(tmp_path, *mpirun_command.mpirun_line(mpirun_command.find_mpirun(), 2), "sh", "-c", shell)
    job.process.kill()
    assert processes_left(job) == []
    job.end(10)


@pytest.mark.variants(1)
@pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "can run")
@pytest.mark.parametrize("which", [0, 1])
def test_on_other_hosts(tmp_path, which):
    """Launcher or mpirun: nothing goes on on any host."""
    with Hosts(2) as made:
        line = [*made.on(folder=tmp_path), LAUNCHER, "run", "-n", "4", "--hosts", "h1:2,h2:2", "script.py"]
        job = begin(tmp_path, *line, **made.environ)
        processes(job)[which].kill()
        assert processes_left(job) == []
        assert [found for found in left(made, job, 30) if "/tmp/ompi." not in found] == []
        job.end(10)


#: AutoGraph converts a function, shows its source, and the rank is killed.
CONVERTED = """
import inspect, os, signal, tempfile
import tensorflow as tf
import matex_tf

@tf.function
def count(x):
    while x < 10:
        x = x + 1
    return x

assert int(count(tf.constant(1))) == 10
assert "while_stmt" in inspect.getsource(tf.autograph.to_graph(count.python_function))
world = matex_tf.init()
world.barrier("convert")
print([name for name in os.listdir(tempfile.gettempdir()) if "ompi" not in name], flush=True)
world.barrier("look")
if world.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    world.barrier("wait")
"""


@pytest.mark.variants(0)
def test_files_of_autograph(tmp_path):
    """A rank that is killed leaves none, and their source is shown all the same."""
    (tmp_path / "script.py").write_text(CONVERTED)
    job = Job([LAUNCHER, "run", "-n", "2", "script.py"], tmp_path)
    ended = job.end(100)
    assert ended.code == 137 and "[]" in ended.out, ended
    assert job.left() == []
