"""Processes that a script starts: they are no ranks, and its workers work."""

import json
import tempfile

import pytest
from jobs import LAUNCHER, Job

from matex_tf.job import child_processes

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
import keras
import numpy as np


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
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
    import sys

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
