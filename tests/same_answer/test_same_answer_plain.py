"""One rank of this runtime is plain Keras: what every other test compares with is the real thing."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from compare import difference
from pool import THREADS

from tests.support.cases import callbacks, data, loops, models, options
from tests.support.named import label, path_of

CASES = [
    data.numpy_arrays,
    data.dicts,
    options.evaluate_and_predict,
    options.train_on_batches,
    models.gan,
    models.own_train_step,
    callbacks.early_stopping,
    loops.guide,
]


@pytest.fixture(scope="module")
def plain(request, tmp_path_factory):
    """What the cases return in a Python that knows nothing of MPI or of patches."""
    file = tmp_path_factory.mktemp("plain") / "results"
    chosen = [path_of(item.callspec.params["case"]) for item in request.session.items if item.path == request.path]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MATEX", "OMPI", "PMI"))}
    subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "support" / "plain.py"), str(file), *chosen],
        env=environment | THREADS, check=True, timeout=240,
    )  # fmt: skip
    return pickle.loads(file.read_bytes())


@pytest.mark.variants(2)
@pytest.mark.parametrize("case", CASES, ids=label)
def test_one_rank_is_plain_keras(ranks, plain, case):
    """To the bit."""
    value = ranks(case, (1,))[1][0]
    assert not list(difference(plain[path_of(case)], value, 0.0, 0.0))
