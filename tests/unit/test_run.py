"""Preparing a rank: what the launcher tests cannot see from outside."""

from types import SimpleNamespace

import pytest
from there import case

from matex_tf.cli.main import main
from matex_tf.job import run
from matex_tf.settings import Settings


@pytest.mark.parametrize(
    ("listed", "local_rank", "device"),
    [("0,1,2,3", 2, "2"), ("4,6", 3, "6"), ("GPU-a,GPU-b", 0, "GPU-a"), ("5", 1, "5"), ("-1", 1, "-1"), ("", 0, "")],
)
def test_a_gpu_for_each_rank(monkeypatch, listed, local_rank, device):
    """GPUs that are listed are taken in turn; one, or none, stays as it is."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    run.set_gpus(SimpleNamespace(local_rank=local_rank, arrival=None))
    assert run.os.environ["CUDA_VISIBLE_DEVICES"] == device


@pytest.mark.parametrize(
    ("cores", "ranks", "said"),
    [(8, 2, "4 threads each"), (2, 2, "1 thread each"), (2, 4, "1 thread each (4 ranks share 2 cores)")],
)
def test_ranks_that_share_cores_say_so(monkeypatch, cores, ranks, said):
    """What the first line of a job says of threads."""
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(run.os, "sched_getaffinity", lambda pid: set(range(cores)))
    world = SimpleNamespace(host="node1", allgather=lambda value, what: [value] * ranks)
    assert run.set_threads(world, 0) == said


@pytest.mark.parametrize(
    ("chosen", "nodes", "said"),
    [
        ({}, 1, ""),
        ({"strategy": "pipe"}, 1, "; --strategy pipe changes the answer: gradients are applied a step late"),
        ({"strategy": "pipe", "pipe_width": 1}, 1, ""),
        case("groups", {"strategy": "local", "local_every": 8}, 1, "average what they have learned every 8 steps"),
        ({"codec": "int8"}, 1, "; --codec int8: no effect on one node"),
        ({"codec": "int8"}, 2, "; --codec int8: gradients are rounded between nodes"),
        case(
            "gossip",
            {"strategy": "gossip", "codec": "int8"},
            1,
            "what ranks send of their weights is rounded",
        ),
        ({"batch": "per-rank"}, 1, "; --batch per-rank: the global batch is 4 times as large"),
        case(
            "samples", {"prune_samples": 0.5}, 1, "--prune-samples 0.5 changes the answer: epochs leave out easy rows"
        ),
        case("samples", {"prune_samples": 0.5, "prune_samples_by": "random"}, 1, "epochs leave out rows at random"),
        case("samples", {"sample_scores": "scores.csv"}, 1, ""),
        case(
            "dynamics",
            {"apoptosis": True, "grow": True},
            1,
            "--apoptosis, --grow: neurons come and go while fit trains",
        ),
    ],
)
def test_the_first_line_says_what_changes(chosen, nodes, said):
    """What changes the answer has no line of its own: a normal run begins with two lines."""
    end = run.what_changes(SimpleNamespace(nodes=range(nodes), size=4), Settings().changed(**chosen))
    assert end.endswith(said) and bool(end) == bool(said)


@pytest.mark.parametrize(
    ("words", "begins"), [(["--ranks", "2:8", "-n", "3"], 3), (["--ranks", "2:4", "--hosts", "a:3,b:3"], 4)]
)
def test_between(words, begins, tmp_path, monkeypatch, capsys):
    """A job of --ranks begins with those that there is room for, and goes on with what is left and comes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["run", "--dry-run", *words, "train.py"]) == 0
    line = capsys.readouterr().out
    assert f"-n {begins} " in line and f"--faults shrink --min-ranks 2 --max-ranks {words[1][2:]} train.py" in line


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--ranks", "4:2"], "it must look like 2:8"),
        (["--ranks", "2"], "it must look like 2:8"),
        (["--ranks", "0:2"], "it must look like 2:8"),
        (["--ranks", "4:8", "-n", "3"], "--ranks asks for 4 ranks at least, and there is room for 3"),
    ],
)
def test_not_between(words, why, capsys):
    assert main(["run", *words, "train.py"]) == 2
    assert why in capsys.readouterr().err
