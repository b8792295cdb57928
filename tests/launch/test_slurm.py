"""Jobs in a Slurm cluster of two nodes, emulated on this machine by tests/support/slurm_cluster.py."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import slurm_cluster
from jobs import LAUNCHER
from slurm_jobs import Batch, needs_slurm, sbatch
from there import case

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


@needs_slurm
@pytest.mark.parametrize("tasks, words", [(2, ""), (3, ""), case("warm", 2, " --warm-imports on")])
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
@pytest.mark.parametrize("faults", ["abort", "shrink", case("restart", "restart")])
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
@pytest.mark.parametrize("faults", ["abort", "shrink", case("restart", "restart")])
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


def test_tasks_of_each_node():
    """As Slurm writes them."""
    assert slurm.counts_of("2(x3),1") == [2, 2, 2, 1] and slurm.counts_of("16") == [16] and slurm.counts_of("") == []
    assert slurm.hosts({}) == ""
