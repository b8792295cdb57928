"""Jobs in a Slurm cluster of two nodes, emulated on this machine by tests/support/slurm_cluster.py."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import slurm_cluster
from jobs import LAUNCHER

from matex_tf.launch import slurm
from tests.faults.test_faults_hosts import STEPS, survived

pytestmark = pytest.mark.timeout(300)
_UNAVAILABLE = slurm_cluster.unavailable()


def needs_slurm(test):
    """Mark a test that is run on the cluster."""
    return pytest.mark.slurm(pytest.mark.skipif(bool(_UNAVAILABLE), reason=_UNAVAILABLE or "can run")(test))


RANKS = 4


@pytest.fixture(scope="module")
def cluster():
    with slurm_cluster.Cluster(2) as made:
        yield made


class Batch:
    """A batch job that runs one command on both nodes, two ranks each."""

    def __init__(self, cluster: slurm_cluster.Cluster, folder: Path, command: str):
        self.cluster, self.folder = cluster, folder
        cluster.idle()
        (folder / "script.py").write_text(STEPS)
        (folder / "job.sh").write_text(f"#!/bin/bash\n{command} script.py\necho ended with $?\n")
        options = ["--no-kill", "--nodes=2", "--ntasks-per-node=2", "--output=out", f"--chdir={folder}"]
        self.number = cluster.ask("sbatch", "--parsable", *options, str(folder / "job.sh")).strip()

    def await_ranks(self, what: str = "ready", ranks: int = RANKS) -> None:
        limit = time.monotonic() + 90
        while len(list(self.folder.glob(f"{what}.*"))) < ranks:
            assert time.monotonic() < limit, f"{self.said()}\n{self.cluster.logs()}"
            time.sleep(0.05)

    def go(self) -> None:
        (self.folder / "on").touch()
        (self.folder / "go").touch()

    def said(self) -> str:
        path = self.folder / "out"
        return path.read_text(errors="replace") if path.exists() else ""

    def end(self, seconds: float = 90) -> str:
        """What the job has printed, once it has ended."""
        limit = time.monotonic() + seconds
        while "ended with" not in self.said():
            if time.monotonic() > limit:
                self.cluster.ask("scancel", self.number)
                raise AssertionError(f"still running after {seconds} s\n{self.said()}\n{self.cluster.logs()}")
            time.sleep(0.1)
        return self.said()


@needs_slurm
def test_nobody_dies(cluster, tmp_path):
    """`matex-tf run` takes nodes and ranks from Slurm, and ends."""
    batch = Batch(cluster, tmp_path, f"{LAUNCHER} run --faults shrink")
    batch.go()
    said = batch.end()
    assert "matex_tf: 4 ranks on 2 nodes" in said and "ended with 0" in said and "died" not in said, said
    survived(tmp_path, range(RANKS))


@needs_slurm
def test_srun(cluster, tmp_path):
    """Ranks that srun starts, and nothing printed but what they print, where Slurm offers munge to them as well."""
    offered = "PMIX_SECURITY_MODE=munge,native"
    batch = Batch(cluster, tmp_path, f"srun --mpi=pmix env {offered} {sys.executable} -m matex_tf")
    batch.go()
    said = batch.end()
    assert "matex_tf: 4 ranks on 2 nodes" in said and "ended with 0" in said and "Sorry" not in said, said
    survived(tmp_path, range(RANKS))


@needs_slurm
def test_srun_loses_a_rank(cluster, tmp_path):
    """The job ends with another code than 0: each rank's own code is right."""
    batch = Batch(cluster, tmp_path, f"srun --mpi=pmix {sys.executable} -m matex_tf")
    batch.await_ranks()
    rank = next(pid for pid, command in cluster.hosts.processes("h2").items() if "-m matex_tf" in command)
    os.kill(rank, signal.SIGKILL)
    batch.go()
    said = batch.end()
    assert "ended with 0" not in said and not list(tmp_path.glob("end.*")), said


@needs_slurm
@pytest.mark.parametrize("lost", ["node", "srun"])
@pytest.mark.parametrize("faults", ["abort", "shrink", "restart"])
def test_a_node_is_lost(cluster, tmp_path, faults, lost):
    """The node is set down, or the srun that holds it is killed: with `shrink` and `restart` the job comes to its end
    and has the answer; with `abort` it ends, and not as if it had gone well."""
    batch = Batch(cluster, tmp_path, f"{LAUNCHER} run --faults {faults}")
    batch.await_ranks()
    if lost == "node":
        cluster.down("h2")
    else:
        for pid, command in cluster.hosts.processes("h1").items():
            if command.startswith("srun ") and "prted" in command:
                os.kill(pid, signal.SIGKILL)
    if faults == "abort":
        said = batch.end()
        assert "ended with 0" not in said and not list(tmp_path.glob("end.*")), said
        return
    batch.go()
    said = batch.end()
    assert "ended with 0" in said, said
    if lost == "node":
        survived(tmp_path, [0, 1])
        line = "h2 cannot be reached" if faults == "restart" else "ranks 2-3 of 4 on h2 died in step"
        assert line in said, said


def test_tasks_of_each_node():
    """As Slurm writes them."""
    assert slurm.counts_of("2(x3),1") == [2, 2, 2, 1] and slurm.counts_of("16") == [16] and slurm.counts_of("") == []
    assert slurm.hosts({}) == ""
