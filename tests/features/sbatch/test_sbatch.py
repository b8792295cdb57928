"""`matex-tf sbatch`: job scripts, and what becomes of them in a Slurm cluster of two nodes."""

import re
import subprocess
from pathlib import Path

import pytest
import slurm_cluster
from jobs import LAUNCHER
from slurm_jobs import Batch, needs_slurm, where_slurm_is
from there import needs

from tests.faults.test_faults_hosts import STEPS, survived
from tests.launch.test_slurm_keras import TRAIN, expect, losses

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def cluster():
    with slurm_cluster.Cluster(2, cpus=4) as made:
        yield made


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["s.py"], "how many ranks"),
        (["-n", "2", "--slurm", "ib", "s.py"], "must be an option of sbatch"),
        (["-n", "2", "missing.py"], "no script missing.py"),
        (["-n", "2", "-"], "save the script in a file"),
        (["-n", "2", "--file", "mine.sh", "s.py"], "mine.sh is there, and not written by matex-tf sbatch"),
    ],
)
def test_sbatch_refuses(tmp_path, words, message):
    """What cannot be a job is said, and no file is touched."""
    (tmp_path / "s.py").touch()
    (tmp_path / "mine.sh").write_text("mine")
    done = subprocess.run([LAUNCHER, "sbatch", *words], cwd=tmp_path, input="pass\n", capture_output=True, text=True)
    assert done.returncode == 2 and message in done.stderr, done
    assert (tmp_path / "mine.sh").read_text() == "mine" and len(list(tmp_path.iterdir())) == 2


@needs("restart")
def test_job_script(tmp_path):
    """Options of Slurm in its own names; checkpoints, requeue and the signal where there is something to go on from."""
    (tmp_path / "a b.py").touch()

    def written(*words):
        line = [LAUNCHER, "sbatch", "-n", "16", "--file", "job", *words, "a b.py", "--epochs", "3"]
        subprocess.run(line, cwd=tmp_path, check=True, capture_output=True)
        subprocess.run(["bash", "-n", "job"], cwd=tmp_path, check=True)
        return (tmp_path / "job").read_text()

    text = written(
        "--time=4:00:00", "--array=0-3", "--slurm=--constraint=ib", "--seed", "4", "--checkpoint-dir", "my dir"
    )
    for line in (
        *("--ntasks=16", "--time=4:00:00", "--array=0-3", "--constraint=ib", "--output=a b-%A_%a.log"),
        *("--no-kill", "--requeue", "--signal=B:USR1@120", "--open-mode=append"),
    ):
        assert f"#SBATCH {line}\n" in text, text
    assert f"checkpoints='{tmp_path}/my dir'/$SLURM_ARRAY_TASK_ID\n" in text and "rmdir" not in text
    assert "run --seed 4 --faults restart --resume on --checkpoint-dir \"$checkpoints\" 'a b.py' --epochs 3 &" in text
    shrink = written("--faults", "shrink")
    assert (
        "--no-kill" in shrink and "--no-requeue" in shrink and "signal" not in shrink and "checkpoint-dir" not in shrink
    )
    abort = written("--faults", "abort")
    assert "--no-kill" not in abort and "--no-requeue" in abort


@where_slurm_is
@pytest.mark.parametrize("faults", ["abort", pytest.param("shrink", marks=pytest.mark.slurm)])
def test_submitted(cluster, tmp_path, faults):
    """`matex-tf sbatch --submit` hands in a job that takes nodes and ranks from Slurm, and ends well.

    With `shrink` ranks spin in Open MPI's failure detector until all have started, and kernels have been seen that let
    nothing else run for minutes, so that tests beside it ended too: that is tried with `--slurm` alone.
    """
    (tmp_path / "script.py").write_text(STEPS)
    (tmp_path / "on").touch()
    (tmp_path / "go").touch()
    line = [LAUNCHER, "sbatch", "--nodes", "2", "--ntasks-per-node", "2", "--faults", faults, "--log", "out"]
    batch = Batch(cluster, tmp_path, [*line, "--submit", "script.py"])
    state = batch.end()
    said = batch.said()
    assert state["JobState"] == "COMPLETED" and state["ExitCode"] == "0:0", (state, said)
    assert "matex_tf: 4 ranks on 2 nodes" in said and "died" not in said, said
    survived(tmp_path, range(4))


def submit(cluster: slurm_cluster.Cluster, folder: Path, *words: str) -> Batch:
    line = [LAUNCHER, "sbatch", "--nodes=2", "--ntasks-per-node=1", "--log", "out", *words, "--submit"]
    return Batch(cluster, folder, [*line, "--seed", "4", "--checkpoint-seconds", "1", "train.py"])


@needs_slurm
def test_time_limit(cluster, folder):
    """At the limit of a minute the job saves a checkpoint, is queued again, and ends with the losses of one process."""
    batch = submit(cluster, folder, "--time", "1", "--seconds-to-save", "10")
    said = batch.await_words("and the job ends, as SIGUSR1 asks", 100)
    (folder / "again").touch()
    batch.await_requeue()
    state = batch.end(150)
    said = batch.said()
    assert state["JobState"] == "COMPLETED" and state["Restarts"] == "1", (state, said)
    saved = re.search(r"the checkpoint of (step \d+ of epoch \d of fit 1) is saved", said)
    assert saved and f"training continues at {saved[1]}" in said, said
    expect(folder)
    assert not list(folder.glob("checkpoints-*")), said


@needs_slurm
def test_array(cluster, folder):
    """Each job of an array has checkpoints, a log and a requeue of its own."""
    (folder / "again0").touch()
    batch = submit(cluster, folder, "--array", "0-1", "--log", "out.%a")
    batch.await_files("ready1.*", 2)
    number, batch.number, batch.log = batch.number, f"{batch.number}_1", folder / "out.1"
    cluster.ask("scancel", "--signal=USR1", "--batch", batch.number)
    batch.await_words("and the job ends, as SIGUSR1 asks")
    (folder / "again1").touch()
    batch.await_requeue()
    batch.end(150)
    batch.number = f"{number}_0"
    batch.end(150)
    assert "training continues at step" in batch.said() and "SIGUSR1" not in (folder / "out.0").read_text()
    first, second = losses(folder, "0"), losses(folder, "1")
    assert first != second
    expect(folder, "0"), expect(folder, "1")


@needs_slurm
def test_the_first_node_is_lost(cluster, folder):
    """With the node of the job script the job is over; the same script, handed in again, goes on."""
    batch = submit(cluster, folder, "--checkpoint-dir", "kept")
    batch.await_files("kept/.matex-checkpoints/train/fit-*", 2)
    (folder / "again").touch()
    cluster.down("h1")
    state = batch.end(60)
    assert state["JobState"] != "COMPLETED" and not (folder / "result.json").exists(), (state, batch.said())
    batch = Batch(cluster, folder, ["sbatch", "--parsable", "train.sbatch"])
    state = batch.end(150)
    said = batch.said()
    assert state["JobState"] == "COMPLETED" and "training continues at step" in said, said
    expect(folder)
