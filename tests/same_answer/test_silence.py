"""No job of several ranks does the work of one without a word."""

import sys

import pytest
from jobs import LAUNCHER, Job
from there import case, needs_keras_2

from tests.support.cases import silence
from tests.support.frameworks import TORCH, write

NOTHING = "nothing was split: "
OWN = "most of what is tried here is work that each rank does by itself"
LEGACY = needs_keras_2()

#: What trains, and how what is said at the end begins; "" for what is shared out.
SAID = {
    "nothing": NOTHING + "no training was seen",
    "fit": "",
    "predict": "",
    "loop": "",
    "loop_in_function": "",
    "session": "",
    "torch_with_its_own_ranks": "",
    "loop_over_arrays": "",
    "eager_loop_over_arrays": NOTHING + "a loop of the script's own trained on each of 3 ranks",
    "eager_loop_then_evaluate": "not all was split: a loop of the script's own",
    "session_without_feeds": NOTHING + "runs of a session",
    "torch": NOTHING + "PyTorch trained on each of 3 ranks, on all rows, and 3 ranks did the work of one. To do:",
    "jax": NOTHING + "JAX",
    "torch_beside_fit": "not all was split: PyTorch",
}
SAID_LEGACY = {
    "tf_keras": "",
    "tf_keras_legacy_optimizer": "",
    "tf_keras_in_a_loop": "",
}


@pytest.mark.variants(4)
@pytest.mark.parametrize(
    ("what", "begins"),
    [
        *(case("sessions", *one) if one[0].startswith("session") else one for one in SAID.items()),
        *(pytest.param(*one, marks=LEGACY, id="-".join(one)[:40]) for one in SAID_LEGACY.items()),
    ],
)
def test_what_was_not_shared_out_is_said(ranks, what, begins):
    """At the end; with --require-sharing the first such step is an error on every rank."""
    for said, raised in ranks(silence.summary, (3,), apart=OWN, what=what)[3]:
        assert raised == ""
        assert said.startswith(begins) and bool(said) == bool(begins), said
    refused = bool(begins) and what != "nothing"
    for _, raised in ranks(silence.summary, (3,), apart=OWN, what=what, require=True)[3]:
        assert raised.startswith("MatexError: ") == refused, raised
        assert ("--require-sharing: a training step of" in raised) == refused


@pytest.mark.parametrize("text", ["from mpi4py import MPI", "rank = os.environ['SLURM_PROCID']"])
def test_scripts_that_know_of_ranks(ranks, text):
    """They are taken to divide their work by themselves: a softer line where they train, none where they do not."""
    soft = ranks(silence.summary, (3,), apart=OWN, what="torch", text=text)[3]
    assert all(said.startswith("what PyTorch trained was not split; the script knows") for said, _ in soft)
    assert all(said == "" for said, _ in ranks(silence.summary, (3,), apart=OWN, what="nothing", text=text)[3])


def test_jobs(tmp_path):
    """What a job prints, and its code: at its import, at its end, also by sys.exit(0), and at its first step."""
    write(TORCH, tmp_path)
    (tmp_path / "train.py").write_text("import sys, torch\ntorch.optim.SGD().step()\nprint('trained')\nsys.exit(0)")
    (tmp_path / "plain.py").write_text("print('hello')")
    (tmp_path / "ranks.py").write_text("import torch, matex_tf\nprint(matex_tf.size())")
    run = [LAUNCHER, "run", "-n", "2"]
    ended = Job([*run, "train.py"], tmp_path).end()
    assert ended.code == 0 and "trained" in ended.out
    assert ended.err.count("matex_tf: PyTorch is imported: matex_tf does not split what it trains") == 1
    assert ended.err.count(f"matex_tf: {NOTHING}PyTorch trained on each of 2 ranks") == 1
    ended = Job([*run, "--require-sharing", "on", "train.py"], tmp_path).end()
    assert ended.code == 1 and "trained" not in ended.out
    assert ended.err.count("matex_tf: error: --require-sharing: a training step of PyTorch is not split") == 1
    for quiet in ("plain.py", "ranks.py"):
        ended = Job([*run, quiet], tmp_path).end()
        assert ended.code == 0 and "split:" not in ended.err


@pytest.mark.variants(0)
@LEGACY
def test_job_of_legacy_keras(tmp_path):
    """`tf.keras` with TF_USE_LEGACY_KERAS=1 is shared out, and every rank has the history of all rows."""
    (tmp_path / "train.py").write_text(
        "import numpy as np, tensorflow as tf\n"
        "model = tf.keras.Sequential([tf.keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        "x = np.arange(64, dtype='float32').reshape(16, 4) / 64\n"
        "model.build([None, 4])\n"
        "model.set_weights([np.ones([4, 1]), np.zeros(1)])\n"
        "history = model.fit(x, x[:, :1], batch_size=5, epochs=2, shuffle=False, verbose=0)\n"
        "print('trained', tf.keras.Model.__module__, *(round(loss, 3) for loss in history.history['loss']))\n"
    )
    line = [LAUNCHER, "run", "-n", "2", "--require-sharing", "on", "train.py"]
    ended = Job(line, tmp_path, TF_USE_LEGACY_KERAS="1").end(120)
    alone = Job([sys.executable, "train.py"], tmp_path, TF_USE_LEGACY_KERAS="1").end(120)
    assert ended.code == alone.code == 0 and "trained tf_keras." in ended.out
    assert ended.out.split("trained")[1] == alone.out.split("trained")[1]
    assert "each of 2 ranks has the same 16 rows, and computes its part of each batch" in ended.err
