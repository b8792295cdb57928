"""Processes that a script starts: they are no ranks, and its workers work."""

import json
import os
import subprocess
import sys
import tempfile

import psutil
import pytest
from jobs import LAUNCHER, Job

from matex_tf.core import starting
from matex_tf.core.sign import Sign
from matex_tf.job import child_processes
from matex_tf.launch import monitor
from matex_tf.state import run_state

pytestmark = pytest.mark.timeout(200)

#: Starts a child in every way that there is; each says which variables of a rank it has.
SCRIPT = """
import asyncio, json, multiprocessing, os, shlex, subprocess, sys

NAMES = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_URI2")


def found(words):
    return [name for name in NAMES if name in os.environ] + words


def main():
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    code = f"import os; print([n for n in {NAMES} if n in os.environ], os.environ.get('MINE'))"
    line = [sys.executable, "-c", code]
    os.environ["MINE"] = "kept"
    said = {"here": found([])}

    def run(**options):
        return subprocess.run(line, capture_output=True, text=True, check=True, **options).stdout

    def into_a_pipe(start):
        source, target = os.pipe()
        old = os.dup(1)
        os.dup2(target, 1)
        os.close(target)
        start()
        os.dup2(old, 1)
        with open(source) as file:
            return file.read()

    def exec_in_a_child(call):
        def start():
            pid = os.fork()
            if not pid:
                call()
            os.waitpid(pid, 0)
        return start

    async def by_asyncio():
        child = await asyncio.create_subprocess_exec(*line, stdout=subprocess.PIPE, env=dict(os.environ))
        return (await child.communicate())[0].decode()

    python, own = sys.executable, os.environ.copy()
    said["run"] = run()
    said["run, os.environ"] = run(env=os.environ)
    said["run, a copy"] = run(env=own)
    said["run, bytes"] = run(env={os.fsencode(name): os.fsencode(value) for name, value in own.items()})
    child = subprocess.Popen(line, -1, None, None, -1, None, None, True, False, None, own)
    said["run, in order"] = child.communicate()[0].decode()
    said["spawned by subprocess"] = run(close_fds=False)
    said["a shell"] = subprocess.check_output(shlex.join(line), shell=True, text=True)
    said["system"] = into_a_pipe(lambda: os.system(shlex.join(line)))
    said["popen"] = os.popen(shlex.join(line)).read()
    said["spawnv"] = into_a_pipe(lambda: os.spawnv(os.P_WAIT, python, line))
    said["spawnve"] = into_a_pipe(lambda: os.spawnve(os.P_WAIT, python, line, os.environ))
    said["posix_spawn"] = into_a_pipe(lambda: os.waitpid(os.posix_spawn(python, line, os.environ), 0))
    said["execv"] = into_a_pipe(exec_in_a_child(lambda: os.execv(python, line)))
    said["execve"] = into_a_pipe(exec_in_a_child(lambda: os.execve(python, line, own)))
    said["execvpe"] = into_a_pipe(exec_in_a_child(lambda: os.execvpe(python, line, own)))
    said["asyncio"] = asyncio.run(by_asyncio())
    wanted = {**own, "PMIX_RANK": "17"}
    said["on purpose"] = run(env=wanted)
    for how in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(how).Pool(2) as pool:
            said[how] = pool.map(found, [["a"], ["b"]])
    alone = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
    said["mpi4py"] = subprocess.run([python, "-c", alone], capture_output=True, text=True, env=own).stdout
    line = [*json.loads(os.environ["NESTED"]), python, "-c", alone]
    said["mpirun"] = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    with open(f"said.{rank}", "w") as file:
        json.dump(said, file)


if __name__ == "__main__":
    main()
"""

#: Keras' workers are processes of the script.
WORKERS = """
import os

import keras
import numpy as np


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        with open(f"worker.{os.getpid()}", "w") as file:
            file.write("here")
        x = np.random.default_rng(index).normal(size=(8, 3))
        return x, x.sum(1, keepdims=True)


def main():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    rows = Rows(workers=1, use_multiprocessing=True)
    print("the loss is", model.fit(rows, epochs=2, shuffle=False, verbose=0).history["loss"])


if __name__ == "__main__":
    main()
"""


#: Forks in every way that there is; the children change files, start programs and end in every way.
FORKS = """
import atexit, concurrent.futures, multiprocessing, os, pathlib, signal, subprocess, sys, threading
import numpy as np

atexit.register(lambda: print("atexit", os.getpid() == MAIN, flush=True))
MAIN = os.getpid()


def work(number):
    with open(f"open{number}.txt", "w") as file:
        file.write("text")
    with open("kept.txt") as file:
        assert file.read() == "from the parent"
    np.save(f"array{number}.npy", np.arange(number))
    os.makedirs(f"folder{number}/below", exist_ok=True)
    if number == 3:
        pathlib.Path(f"open{number}.txt").unlink(missing_ok=True)  # of each rank
    said = subprocess.run(["echo", str(number)], capture_output=True, text=True).stdout
    return number, said, os.system("exit 3") >> 8


def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    raise AssertionError


def in_a_child(call):
    pid = os.fork()
    if not pid:
        call()
        sys.exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(call, "ends with", code, flush=True)


def write():
    kept.write(" and its child")
    kept.close()


def again():
    in_a_child(sys.exit)
    sys.exit(5)


def threaded():
    threading.Thread(target=lambda: (threading.Event().wait(0.1), print("thread", flush=True))).start()


class Named:
    def __init__(self, name, call):
        self.name, self.call = name, call

    def __call__(self):
        return self.call()

    def __str__(self):
        return self.name


with open("kept.txt", "w") as file:
    file.write("from the parent")
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(work, range(4)))
with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
    print(list(pool.map(work, range(4))))
process = multiprocessing.get_context("fork").Process(target=sys.exit, args=(7,))
process.start(), process.join()
print("process", process.exitcode, flush=True)
kept = open("held.txt", "w")
for call in (
    Named("exit", sys.exit), Named("code", lambda: sys.exit(3)), Named("words", lambda: sys.exit("words")),
    Named("error", lambda: 1 / 0), Named("interrupt", interrupted), Named("again", again), Named("thread", threaded),
    Named("os._exit", lambda: os._exit(4)), Named("write", write),
):
    in_a_child(call)
kept.close()
print(open("held.txt").read(), flush=True)
if not os.fork():
    print("to the end", flush=True)
else:
    os.wait()
    print("the parent", flush=True)
"""

#: What generators without a seed draw in forked processes, and whom these take themselves for.
DRAWS = """
import json, multiprocessing, os, random
import numpy as np
import matex_tf


def draw(_):
    barrier.wait()  # so that each process has one
    drawn = [float(np.random.default_rng().random()), random.random(), random.Random().random()]
    return drawn, matex_tf.rank(), matex_tf.size()


fork = multiprocessing.get_context("fork")
barrier = fork.Barrier(2)
with fork.Pool(2) as pool:
    said = pool.map(draw, [1, 2], chunksize=1)
with open(f"drawn.{os.environ['OMPI_COMM_WORLD_RANK']}", "w") as file:
    json.dump(sorted(said), file)
"""

#: Training in a process of its own, as scripts do that want their memory back; and then in the script.
TRAINS = """
import multiprocessing


def train(queue=None):
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    loss = model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=2, verbose=0).history["loss"]
    model.save("model.keras")
    return queue.put(loss) if queue is not None else loss


fork = multiprocessing.get_context("fork")
queue = fork.Queue()
process = fork.Process(target=train, args=(queue,))
process.start()
print("the loss is", [queue.get(), train()])
process.join()
assert process.exitcode == 0
"""


def test_forked(tmp_path):
    """Whatever the script forks does what it does, and ends, as in a script that Python runs."""
    ended, found = {}, {}
    for files in ("", "once", "private"):
        folder = tmp_path / f"of {files}"
        folder.mkdir()
        (folder / "script.py").write_text(FORKS)
        line = [LAUNCHER, "run", "-n", "2", "--files", files, "script.py"] if files else [sys.executable, "script.py"]
        job = Job(line, folder)
        ended[files] = job.end(100)
        assert ended[files].code == 0, ended[files].err
        assert not job.left()
        found[files] = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert ended["once"].out == ended["private"].out == ended[""].out
    assert found["once"] == found["private"] == found[""]
    ours = [line for line in ended["once"].err.splitlines() if line.startswith("matex_tf:")]
    assert len(ours) == 2 and "script.py:10 changes files or starts programs" in ours[1], ours
    for words in ("words", "ZeroDivisionError: division by zero", "KeyboardInterrupt"):
        counts = [one.err.splitlines().count(words) for one in ended.values()]
        assert counts == [1, 1, 1], words


#: Leaves a program running that has inherited the script's output, as one that serves TensorBoard does.
LEAVES = """
import subprocess, sys

left = subprocess.Popen([sys.executable, "-c", "import time\\nwhile True: time.sleep(1)"])
with open("left", "w") as file:
    file.write(str(left.pid))
print("the last line " * 10000)
"""


def test_nothing_is_left_running():
    """An mpirun that is slow to end, on a busy machine, waits for no program: none is named then."""
    with subprocess.Popen(["sleep", "100"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as slow:
        assert monitor.LeftRunning(slow.pid, Sign()).who_still_runs() == ""
        slow.kill()


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_what_is_left_running(ranks, tmp_path):
    """The job ends, all is printed, a line names the program, and that runs on, as with Python."""
    (tmp_path / "script.py").write_text(LEAVES)
    with subprocess.Popen(
        [LAUNCHER, "run", "-n", ranks, "script.py"],
        cwd=tmp_path, stdout=(tmp_path / "out").open("w"), stderr=(tmp_path / "err").open("w"),
        stdin=subprocess.DEVNULL,
    ) as job:  # fmt: skip
        job.wait(100)
    err = (tmp_path / "err").read_text()
    left = psutil.Process(int((tmp_path / "left").read_text()))
    try:
        assert job.returncode == 0, err
        assert (tmp_path / "out").read_text() == "the last line " * 10000 + "\n"
        assert f"(process {left.pid}), which the script has started, still runs" in err
        assert left.status() != psutil.STATUS_ZOMBIE
    finally:
        left.kill()


def test_draws_of_forked_processes(tmp_path):
    """Generators without a seed draw the same on each rank, and something else in each process of a rank."""
    (tmp_path / "script.py").write_text(DRAWS)
    ended = Job([LAUNCHER, "run", "-n", "2", "script.py"], tmp_path).end(60)
    assert ended.code == 0, ended.err
    said = [json.loads((tmp_path / f"drawn.{rank}").read_text()) for rank in range(2)]
    drawn = [[one for one, _, _ in each] for each in said]
    assert drawn[0] == drawn[1]
    numbers = [number for one in drawn[0] for number in one]
    assert len(numbers) == len(set(numbers)) == 6
    assert [[who for _, *who in each] for each in said] == [[[0, 2]] * 2, [[1, 2]] * 2]


@pytest.mark.variants(0)
def test_training_in_a_forked_process(tmp_path):
    """It trains there as on one rank, and the script's own training is that of all ranks."""
    (tmp_path / "script.py").write_text(TRAINS)
    ended = Job([LAUNCHER, "run", "-n", "2", "script.py"], tmp_path).end(150)
    assert ended.code == 0, ended.err
    alone, shared = json.loads(ended.out.partition("the loss is")[2])
    assert shared == pytest.approx(alone, rel=1e-5)


def test_every_way_of_starting_one(tmp_path):
    """No child has what makes a process a rank, but for a fork of the script; MPI in it is a job of its own."""
    from matex_tf.launch import mpirun_command

    (tmp_path / "script.py").write_text(SCRIPT)
    nested = json.dumps(mpirun_command.mpirun_line(mpirun_command.find_mpirun(), 2))
    with tempfile.TemporaryDirectory() as short:  # a socket of multiprocessing's has a name of 107 bytes at most
        ended = Job([LAUNCHER, "run", "-n", "2", "script.py"], tmp_path, NESTED=nested, TMPDIR=short).end(150)
    assert ended.code == 0, ended.err
    for rank in range(2):
        said = json.loads((tmp_path / f"said.{rank}").read_text())
        names = said.pop("here")
        assert {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMIX_NAMESPACE"} <= set(names)
        assert said.pop("fork") == [[*names, "a"], [*names, "b"]]
        assert said.pop("spawn") == said.pop("forkserver") == [["a"], ["b"]]
        assert said.pop("mpi4py") == "1\n" and said.pop("mpirun") == "2\n2\n"
        assert said.pop("on purpose") == "['PMIX_RANK'] kept\n"
        assert set(said.values()) == {"[] kept\n"}, said


@pytest.mark.variants(0)
def test_workers_of_a_dataset(tmp_path):
    """`PyDataset` with processes of its own trains as it does on one rank."""
    (tmp_path / "script.py").write_text(WORKERS)
    said = []
    for line in ([sys.executable, "script.py"], [LAUNCHER, "run", "-n", "2", "script.py"]):
        ended = Job(line, tmp_path).end(100)
        assert ended.code == 0, ended.err
        said.append(json.loads(ended.out.partition("the loss is")[2]))
    assert said[1] == pytest.approx(said[0], rel=1e-5)


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("OMPI_COMM_WORLD_RANK", True),
        ("PMIX_SERVER_URI2", True),
        ("PMI_FD", True),
        ("OMPI_MCA_PREFIXES", True),
        ("OMPI_MCA_btl", False),
        ("PRTE_MCA_plm_ssh_agent", False),
        ("PMIX_PREFIX", False),
        ("OPAL_USER_PARAMS_GIVEN", True),
        ("OMPI_ALLOW_RUN_AS_ROOT", False),
        ("OMPI_CC", False),
        ("MATEX_STDIN", True),
        ("MATEX_BATCH", False),
        ("PATH", False),
    ],
)
def test_what_is_taken_out(name, gone):
    """What a launcher says of a rank, and not what the user says of MPI."""
    assert child_processes.of_a_rank(name) is gone


def test_what_the_user_has_set(monkeypatch):
    """Where our launcher says what the user has set of MPI, all else is the launcher's."""
    monkeypatch.setattr(run_state.part(child_processes._Children), "of_the_user", ["OMPI_MCA_btl"])
    names = ("OMPI_MCA_btl", "OMPI_MCA_coll", "OPAL_PREFIX", "PMIX_PREFIX", "OPAL_USER_PARAMS_GIVEN", "PATH")
    assert [child_processes.of_a_rank(name) for name in names] == [False, True, True, True, True, False]


def test_what_a_script_is_not_told(monkeypatch):
    """What mpirun has said is hidden; what we have said stays, which is read again when the script has ended."""
    monkeypatch.setattr(run_state.current(), "_parts", {})
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("MATEX_RESTARTS", "2")
    child_processes.hide()
    assert "OMPI_COMM_WORLD_RANK" not in os.environ and starting.given("OMPI_COMM_WORLD_RANK") == "1"
    assert os.environ["MATEX_RESTARTS"] == "2"


#: A thread is about to start a program, and has its pipe, as the main thread forks a process that stays: the program
#: begins once that is there, or after a second without it.
MEANWHILE = """
import os, subprocess, sys, threading, time
from matex_tf.job import child_processes

os.environ["PMIX_RANK"] = "0"
child_processes.part()
begin, original, here = threading.Event(), subprocess._fork_exec, []
source, target = os.pipe()


def late(*words):
    begin.set()
    end = time.monotonic() + 1
    while not here and time.monotonic() < end:
        time.sleep(0.01)
    return original(*words)


subprocess._fork_exec = late
thread = threading.Thread(target=subprocess.call, args=(["true"],), daemon=True)
thread.start()
begin.wait()
child = os.fork()
if not child:
    os.close(target)
    os.read(source, 1)  # until the parent ends
    os._exit(0)
here.append(child)
thread.join(20)
print("starts" if not thread.is_alive() else "hangs", flush=True)
os._exit(0)
"""


def test_a_process_that_is_forked_meanwhile():
    """A program that one thread starts while another one forks starts, whatever becomes of the process."""
    said = subprocess.run([sys.executable, "-c", MEANWHILE], capture_output=True, text=True, timeout=60)
    assert said.stdout == "starts\n", said.stderr
