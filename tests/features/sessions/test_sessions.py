"""Graphs and sessions of TensorFlow 1 on N ranks: variables, and what is fetched, as on one."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from compare import difference, same
from pool import THREADS

from tests.features.sessions.cases import sessions
from tests.support.named import path_of

CASES = {
    "minimize": {},
    "adam": {"optimizer": "adam"},
    "clipped": {"how": "clipped"},
    "tf.gradients": {"how": "gradients"},
    "by hand": {"how": "by hand"},
    "three optimizers in one run": {"how": "twice"},
    "50 rows": {"rows": 100, "size": 50},
    "a last batch with fewer rows than ranks": {"rows": 51},
    "sparse": {"sparse": True},
    "sparse, adagrad": {"sparse": True, "optimizer": "adagrad"},
}


pytestmark = pytest.mark.variants(2)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.smoke
def test_trained(ranks, case):
    """Feeds that every rank has."""
    same(ranks(sessions.trained, **CASES[case]), rtol=1e-4 if "adam" in case else 1e-5)


@pytest.mark.parametrize("case", ["minimize", "a last batch with fewer rows than ranks"])
def test_trained_on_more(ranks, case):
    """The same for the other sizes."""
    same(ranks(sessions.trained, (1, 2, 4), **CASES[case]))


@pytest.mark.parametrize("rows", [101, 51])
def test_own_rows(ranks, rows):
    """Feeds of the rank's own rows; together they are the batch."""
    same(ranks(sessions.trained, own=True, rows=rows))


@pytest.mark.parametrize("how", ["initializer", "restored", "monitored"])
def test_initialized(ranks, how):
    """Every rank starts from rank 0's values."""
    same(ranks(sessions.initialized, how=how))


def test_one_rank_is_plain(ranks, tmp_path):
    """To the bit, as in tests/same_answer/test_same_answer_plain.py."""
    script, path, file = Path(__file__).parents[2] / "support" / "plain.py", path_of(sessions.trained), tmp_path / "out"
    subprocess.run([sys.executable, script, file, path], check=True, timeout=240, env={**os.environ, **THREADS})
    assert not list(difference(pickle.loads(file.read_bytes())[path], ranks(sessions.trained, (1,))[1][0], 0.0, 0.0))


def test_files(ranks):
    """Checkpoints and summaries are written once; a monitored session goes on from its checkpoint."""
    reference = same(ranks(sessions.files))
    assert reference["events"] == 1 and reference["monitored"] and len(reference["saved"]) == 2
