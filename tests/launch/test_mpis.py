"""MPICH, Intel MPI and Open MPI 4: environments of `scripts/setup --mpich`, `--impi` and `--openmpi4`.

Without --all, only MPICH is tried, where its environment is; .ci/run has that made.
"""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
import slurm_cluster
import there
from jobs import LAUNCHER, Job
from slurm_jobs import Batch, needs_slurm, sbatch

from matex_tf.cli.checks import mpi_table
from matex_tf.launch import lifetime
from tests.faults.test_faults_hosts import STEPS, survived

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
MPIS = ("mpich", "openmpi4", "impi")
FLAVOURS = {"mpich": "MPICH", "openmpi4": "Open MPI 4", "impi": "Intel MPI"}

#: Ranks meet for ever; rank 1 does what it is told, in its first life.
MEET = """
import os, signal, sys, time
from mpi4py import MPI
import matex_tf
world = matex_tf.init()
version = MPI.Get_library_version()
def asked(*_):
    with open(f"asked.{world.rank}", "w") as file:
        file.write(version)
if sys.argv[1] == "asked":
    signal.signal(signal.SIGUSR1, asked)
world.barrier("start")
if world.rank == 1 and not os.path.exists("lived"):
    open("lived", "w").write("yes")
    if sys.argv[1] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "raises":
        raise ValueError("on purpose")
    if sys.argv[1] == "exits":
        sys.exit(3)
elif sys.argv[1] == "dies":
    sys.exit(0)
while not all(os.path.exists(f"asked.{rank}") for rank in range(world.size)):
    world.barrier("take a step")
    time.sleep(0.01)
"""


def environment(mpi: str) -> Path:
    """The programs of an environment."""
    return ROOT / f".venv-{mpi}" / "bin"


def needs(mpi: str) -> None:
    """Skip a test whose environment is not there."""
    if not (environment(mpi) / "matex-tf").exists():
        pytest.skip(f"scripts/setup --{mpi} makes the environment of this test")


@pytest.fixture(params=MPIS)
def mpi(request):
    needs(request.param)
    return request.param


def start(mpi: str, folder: Path, *words: str) -> Job:
    (folder / "script.py").write_text(MEET)
    return Job([str(environment(mpi) / "matex-tf"), "run", "-n", "2", *words], folder, PATH="/usr/bin:/bin")


@pytest.mark.variants(1)
def test_demo(mpi, server, tmp_path):
    """A training on two ranks ends with the answer of one rank."""
    script = [str(ROOT / "examples" / "digits.py"), "--epochs", "1", "--result"]
    alone = Job([LAUNCHER, "run", "-n", "1", *script, "1.json"], tmp_path, **server.environ)
    ended = Job([str(environment(mpi) / "matex-tf"), "run", "-n", "2", *script, "2.json"], tmp_path).end(200)
    assert ended.code == 0 and "2 ranks on 1 node" in ended.err, ended
    assert alone.end(100).code == 0
    one, two = (json.loads((tmp_path / f"{ranks}.json").read_text()) for ranks in (1, 2))
    for name in ("loss", "accuracy", "training loss", "training accuracy"):
        assert two[name] == pytest.approx(one[name], rel=1e-5), name


@there.needs("restart")
@pytest.mark.variants(1)
def test_the_right_mpi(mpi, tmp_path):
    """SIGUSR1 reaches every rank, and each has the library that its environment is for."""
    job = start(mpi, tmp_path, "--faults", "restart", "script.py", "asked")
    job.await_file(tmp_path / "lived")
    job.process.send_signal(signal.SIGUSR1)
    job.end()
    wanted = {"mpich": r"MPICH Version: +5\.", "openmpi4": r"Open MPI v4\.", "impi": r"Intel\(R\) MPI Library"}
    for rank in (0, 1):
        assert re.match(wanted[mpi], (tmp_path / f"asked.{rank}").read_text())


@pytest.mark.variants(1)
def test_how_it_ends(mpi, tmp_path):
    """A rank that is killed, raises or exits ends the job, with its code and its words last, and leaves nothing."""
    for what, code, last in (
        ("dies", None, ""),
        ("raises", 1, "ValueError: on purpose"),
        ("exits", 3, "sys.exit(3) at script.py"),
    ):
        (tmp_path / "lived").unlink(missing_ok=True)
        job = start(mpi, tmp_path, "script.py", what)
        ended = job.end()
        assert ended.code != 0, ended
        if mpi == "impi":  # whose mpiexec has a code and a last line of its own where it ends the other ranks itself
            assert last in ended.err, ended
        else:
            assert ended.code == (code or ended.code) and last in ended.err.strip().splitlines()[-1], ended
        assert job.left() == [] and not list(Path("/dev/shm").glob("mpich_shm_*")), what


@there.needs("restart")
@pytest.mark.variants(1)
def test_restart(mpi, tmp_path):
    """When a rank dies, the job starts again and comes to its end; carrying on is refused, in words."""
    ended = start(mpi, tmp_path, "--faults", "restart", "script.py", "dies").end()
    assert ended.code == 0 and "restart 1 of 3, with 2 ranks" in ended.err, ended
    ended = start(mpi, tmp_path, "--faults", "shrink", "script.py", "dies").end()
    assert ended.code == 2 and "--faults shrink needs Open MPI 5" in ended.err, ended


def test_whose_shared_memory_is_removed(monkeypatch):
    """What nobody has open or mapped goes; what a process has open stays."""
    unused, used = (Path(f"/dev/shm/mpich_shm_test_{os.getpid()}_{name}") for name in ("unused", "used"))
    unused.touch()
    try:
        with used.open("w"):
            lifetime.remove_unused_segments()
            assert used.exists() and not unused.exists()
    finally:
        used.unlink()


@pytest.fixture(scope="module")
def cluster():
    with slurm_cluster.Cluster(2, cpus=4) as made:
        yield made


@needs_slurm
@pytest.mark.parametrize("start_by", ["run", "srun"])
def test_slurm(cluster, mpi, tmp_path, start_by):
    """`matex-tf run` in a batch job, and srun: four ranks on two nodes, and the answer of one."""
    (tmp_path / "script.py").write_text(STEPS)
    (tmp_path / "on").touch()
    (tmp_path / "go").touch()
    by = "pmix" if mpi == "openmpi4" else "pmi2"
    library = "I_MPI_PMI_LIBRARY=/usr/lib/x86_64-linux-gnu/libpmi2.so.0" if mpi == "impi" else ""
    line = f"{environment(mpi)}/matex-tf run script.py"
    if start_by == "srun":
        line = f"{library} srun --mpi={by} {environment(mpi)}/python -m matex_tf script.py"
    batch = Batch(cluster, tmp_path, sbatch(line, "--nodes=2", "--ntasks-per-node=2", folder=tmp_path))
    said = batch.await_words("ended with")
    assert "matex_tf: 4 ranks on 2 nodes" in said and "ended with 0" in said, said
    survived(tmp_path, range(4))


def test_table():
    """`matex-tf doctor --mpi` prints what docs/launcher.md has."""
    page = (ROOT / "docs" / "launcher.md").read_text()
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in page.splitlines()]
    printed = subprocess.run(
        [LAUNCHER, "doctor", "--mpi"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "160"},
    ).stdout
    for what, cells in mpi_table.ABILITIES.items():
        assert [what, *cells] in rows, what
        line = next(line for line in printed.splitlines() if f" {what} " in line)
        assert all(cell in line for cell in cells), line
    for note in mpi_table.NOTES:
        assert note.partition(";")[0].rstrip(".") in page.replace("`", "").replace("\n", " "), note
