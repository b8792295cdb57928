"""`matex-tf label` with its ranks on two hosts, and in a Slurm job: emulated on this machine."""

import os
import sys
from pathlib import Path

import pytest
import slurm_cluster
from jobs import Job
from on_hosts import left
from slurm_jobs import Batch, needs_slurm, sbatch

from benchmarks.hosts import Hosts, unavailable

HERE = Path(__file__).parent
ROUNDS = HERE / "label_rounds.py"


@pytest.mark.variants(0)
@pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "can run")
def test_on_hosts(tmp_path):
    """Typed on the login node, with `--hosts`: a rank on each host, suggestions, and nothing is left on them."""
    with Hosts(2) as hosts:
        line = [*hosts.on(folder=tmp_path), sys.executable, str(ROUNDS), "-n", "2", "--hosts", "h1:1,h2:1"]
        job = Job(line, tmp_path, **hosts.environ)
        ended = job.end(200)
        assert ended.code == 0, ended.err + ended.out
        assert "2 ranks on 2 nodes" in ended.out and "ended with 0" in ended.out
        assert left(hosts, job, 10) == []


@needs_slurm
def test_in_slurm(tmp_path):
    """In a job: ranks are its tasks, on both nodes."""
    with slurm_cluster.Cluster(2, cpus=4) as cluster:
        line = sbatch(f"{sys.executable} {ROUNDS}", "--nodes=2", "--ntasks-per-node=1", folder=tmp_path)
        batch = Batch(cluster, tmp_path, line)
        said = batch.await_words("ended with", 200)
        assert "2 ranks on 2 nodes" in said and "ended with 0" in said, said
        assert batch.end()["JobState"] == "COMPLETED", os.linesep.join([said, cluster.logs()])
