"""Keras on JAX: the answer of one rank. Plain Python, and a job for each number of ranks, run all cases once."""

import importlib.util
import pickle
import sys
from pathlib import Path

import pytest
from compare import same
from jobs import LAUNCHER, Job

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed (matex_tf[jax])")

SCRIPT = str(Path(__file__).parents[1] / "support" / "jax_rank.py")
FIRST = ("plain", "own_step")
CASES = (*FIRST, "convolution", "sources", "optimizers", "several_inputs", "stops", "eager", "tf_data")
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "KERAS_BACKEND": "jax"}  # compiling is most of what takes time here


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """By the number of ranks, what each rank came to, by case; and what the user was told.

    On 3 ranks there is no TensorFlow.
    """
    sizes, jobs = ((1, 2, 3) if request.config.getoption("--all") else (1, 3)), {}
    for size in sizes:
        folder = tmp_path_factory.mktemp(f"ranks{size}")
        launcher = [sys.executable] if size == 1 else [LAUNCHER, "run", "-n", str(size)]
        cases, environ = (CASES if request.config.getoption("--all") else FIRST), dict(QUICK)
        if size == 3:
            (folder / "sitecustomize.py").write_text("import sys\nsys.modules['tensorflow'] = None\n")
            environ["PYTHONPATH"] = str(folder)
            cases = [case for case in cases if case != "tf_data"]
        jobs[size] = folder, Job([*launcher, SCRIPT, str(folder), *cases], folder, **environ)
    found = {}
    for size, (folder, job) in jobs.items():
        ended = job.end(400)
        assert ended.code == 0, ended.err
        found[size] = pickle.loads((folder / f"results.{size}").read_bytes()), ended
    return found


@pytest.mark.variants(len(FIRST))
@pytest.mark.parametrize("case", CASES)
def test_the_answer_of_one_rank(trained, case):
    found = {size: [one[case] for one in everyone if case in one] for size, (everyone, _) in trained.items()}
    same({size: values for size, values in found.items() if values}, rtol=2e-4, atol=2e-5)


def test_what_is_said(trained):
    """The steps were shared out: nothing says that they were not, and each rank is named once."""
    for size, (everyone, ended) in trained.items():
        assert len(everyone) == size
        assert "was shared out" not in ended.err and "each rank trains whole" not in ended.err
