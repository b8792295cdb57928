"""Jobs in a Slurm cluster of two nodes, emulated on this machine by tests/support/slurm_cluster.py."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import slurm_cluster
from jobs import LAUNCHER
from slurm_jobs import Batch, needs_slurm, sbatch, where_slurm_is

from matex_tf.launch import slurm
from tests.faults.test_faults_hosts import STEPS, survived

pytestmark = pytest.mark.timeout(300)

RANKS = 4


@pytest.fixture(scope="module")
def cluster():
    with slurm_cluster.Cluster(2, cpus=4) as made:
        yield made


def steps(cluster: slurm_cluster.Cluster, folder: Path, command: str, *options: str) -> Batch:
    """A job that runs one command on both nodes, two ranks each; its ranks wait in step 5."""
    (folder / "script.py").write_text(STEPS)
    options = options or ("--no-kill", "--nodes=2", "--ntasks-per-node=2")
    return Batch(cluster, folder, sbatch(f"{command} script.py", *options, folder=folder))


def go(folder: Path) -> None:
    """Let the ranks go on."""
    (folder / "on").touch()
    (folder / "go").touch()


@where_slurm_is
@pytest.mark.parametrize("faults", ["abort", pytest.param("shrink", marks=pytest.mark.slurm)])
def test_submitted(cluster, tmp_path, faults):
    """`matex-tf sbatch --submit` hands in a job that takes nodes and ranks from Slurm, and ends well.

    With `shrink` ranks spin in Open MPI's failure detector until all have started, and kernels have been seen that let
    nothing else run for minutes, so that tests beside it ended too: that is tried with `--slurm` alone.
    """
    (tmp_path / "script.py").write_text(STEPS)
    go(tmp_path)
    line = [LAUNCHER, "sbatch", "--nodes", "2", "--ntasks-per-node", "2", "--faults", faults, "--log", "out"]
    batch = Batch(cluster, tmp_path, [*line, "--submit", "script.py"])
    state = batch.end()
    said = batch.said()
    assert state["JobState"] == "COMPLETED" and state["ExitCode"] == "0:0", (state, said)
    assert "matex_tf: 4 ranks on 2 nodes" in said and "died" not in said, said
    survived(tmp_path, range(RANKS))


@needs_slurm
@pytest.mark.parametrize("tasks, words", [(2, ""), (3, ""), (2, " --warm-imports on")])
def test_srun(cluster, tmp_path, tasks, words):
    """Ranks that srun starts, and nothing printed but what they print, where Slurm offers munge to them as well."""
    line = f"srun --mpi=pmix env PMIX_SECURITY_MODE=munge,native {sys.executable} -m matex_tf{words}"
    go(tmp_path)
    batch = steps(cluster, tmp_path, line, "--nodes=2", f"--ntasks-per-node={tasks}")
    said = batch.await_words("ended with")
    assert f"matex_tf: {2 * tasks} ranks on 2 nodes" in said and "ended with 0" in said and "Sorry" not in said, said
    assert "imports TensorFlow for itself" not in said
    survived(tmp_path, range(2 * tasks))


@needs_slurm
def test_cpus_per_task(cluster, tmp_path):
    """A rank has no more threads than Slurm gives it cores."""
    go(tmp_path)
    options = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1"]
    said = steps(cluster, tmp_path, f"{LAUNCHER} run", *options).await_words("ended with")
    assert "matex_tf: 2 ranks on 2 nodes, 1 thread each" in said and "ended with 0" in said, said
    (tmp_path / "out").unlink()
    said = steps(cluster, tmp_path, f"{LAUNCHER} run", *options[:2]).await_words("ended with")
    threads = len(os.sched_getaffinity(0))
    assert f"{threads} thread{'s' * (threads > 1)} each" in said, said  # the emulated cluster binds nobody


@needs_slurm
def test_srun_loses_a_rank(cluster, tmp_path):
    """The job ends with another code than 0: each rank's own code is right."""
    batch = steps(cluster, tmp_path, f"srun --mpi=pmix {sys.executable} -m matex_tf")
    batch.await_files("ready.*", RANKS)
    batch.kill_rank("h2")
    go(tmp_path)
    said = batch.await_words("ended with")
    assert "ended with 0" not in said and not list(tmp_path.glob("end.*")), said


@needs_slurm
@pytest.mark.parametrize("faults", ["abort", "shrink", "restart"])
def test_a_rank_is_killed(cluster, tmp_path, faults):
    """SIGKILL: with `shrink` the others carry on, with `restart` all begin anew, with `abort` the job ends."""
    batch = steps(cluster, tmp_path, f"{LAUNCHER} run --faults {faults}")
    batch.await_files("ready.*", RANKS)
    batch.kill_rank("h2")
    if faults == "restart":
        batch.await_words("restart 1 of 3")
    go(tmp_path)
    said = batch.await_words("ended with")
    if faults == "abort":
        assert "ended with 0" not in said and not list(tmp_path.glob("end.*")), said
        return
    assert "ended with 0" in said, said
    ends = [json.loads(path.read_text())[0] for path in tmp_path.glob("end.*")]
    assert ends == [3, 3, 3] if faults == "shrink" else ends == [4, 4, 4, 4], said


@needs_slurm
@pytest.mark.parametrize("lost", ["node", "srun"])
@pytest.mark.parametrize("faults", ["abort", "shrink", "restart"])
def test_a_node_is_lost(cluster, tmp_path, faults, lost):
    """The node is set down, or the srun that holds it is killed: with `shrink` and `restart` the job comes to its end
    and has the answer; with `abort` it ends, and not as if it had gone well."""
    batch = steps(cluster, tmp_path, f"{LAUNCHER} run --faults {faults}")
    batch.await_files("ready.*", RANKS)
    if lost == "node":
        cluster.down("h2")
    else:
        for pid, command in cluster.hosts.processes("h1").items():
            if command.startswith("srun ") and "prted" in command:
                os.kill(pid, signal.SIGKILL)
    if faults == "abort":
        said = batch.await_words("ended with")
        assert "ended with 0" not in said and not list(tmp_path.glob("end.*")), said
        return
    go(tmp_path)
    said = batch.await_words("ended with")
    assert "ended with 0" in said, said
    if lost == "node":
        survived(tmp_path, [0, 1])
        line = "h2 cannot be reached" if faults == "restart" else "ranks 2-3 of 4 on h2 died in step"
        assert line in said, said


@needs_slurm
@pytest.mark.parametrize("start", [f"{LAUNCHER} run --faults restart", f"srun --mpi=pmix {sys.executable} -m matex_tf"])
def test_scancel(cluster, tmp_path, start):
    """All ranks end, nothing starts again, and nothing is left on the nodes."""
    batch = steps(cluster, tmp_path, start)
    batch.await_files("ready.*", RANKS)
    cluster.ask("scancel", batch.number)
    assert batch.end()["JobState"] == "CANCELLED"
    assert not batch.left() and "restart 1 of" not in batch.said(), batch.said()
    assert not list(tmp_path.glob("end.*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["s.py"], "how many ranks"),
        (["-n", "2", "--slurm", "ib", "s.py"], "must be an option of sbatch"),
        (["-n", "2", "missing.py"], "no script missing.py"),
        (["-n", "2", "--file", "mine.sh", "s.py"], "mine.sh is there, and not written by matex-tf sbatch"),
    ],
)
def test_sbatch_refuses(tmp_path, words, message):
    """What cannot be a job is said, and no file is touched."""
    (tmp_path / "s.py").touch()
    (tmp_path / "mine.sh").write_text("mine")
    done = subprocess.run([LAUNCHER, "sbatch", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and message in done.stderr, done
    assert (tmp_path / "mine.sh").read_text() == "mine" and len(list(tmp_path.iterdir())) == 2


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


def test_tasks_of_each_node():
    """As Slurm writes them."""
    assert slurm.counts_of("2(x3),1") == [2, 2, 2, 1] and slurm.counts_of("16") == [16] and slurm.counts_of("") == []
    assert slurm.hosts({}) == ""
