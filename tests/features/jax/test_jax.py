"""Keras on JAX: the answer of one rank. Plain Python, and a job for each number of ranks, run all cases once."""

import importlib.util
import pickle
import sys
from pathlib import Path

import pytest
from compare import same
from jobs import LAUNCHER, Job
from there import case

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed (matex_tf[jax])"),
    pytest.mark.timeout(1500),  # with --all the first test waits for all cases
]

SCRIPT = str(Path(__file__).with_name("jax_rank.py"))
FIRST = ("plain", "own_step", "other_rows")
CASES = (
    *(*FIRST, "convolution", "sources", "optimizers", "several_inputs", "stops", "eager", "tf_data"),
    *("precision", "all_optimizers", "metrics", "own_loss", "adversaries", "noises", "sequences"),
    *("on_batches", "ways", "callbacks", "changes", "files", "grains"),
    *("distribution_data", "distribution_model", "distribution_both"),
    *("own_steps", "states", "low_rank", "few_rows", "odd_batches", "wide", "sparse_rows", "hearing"),
    *("optimizers_more", "pools", "inside"),
)
WITH_TENSORFLOW = {"tf_data", "noises", "states", "wide"}  # which Keras needs for these
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "KERAS_BACKEND": "jax"}  # compiling is most of what takes time here


#: Scripts on 2 ranks, without TensorFlow: what they do, with which settings, how they end, and what the user reads.
BEGIN = """
import os, signal
import keras, numpy as np
x = np.ones((8, 4), "float32")
model = keras.Sequential([keras.layers.Dense(2)])
model.compile("sgd", "mse")
"""
RANK = """
rank = os.environ.get("OMPI_COMM_WORLD_RANK")
"""
OTHER_ROWS = """
def rows():
    while True:
        yield np.frombuffer(os.urandom(8), np.uint8).reshape(8, 1), x[:, :2]
model.fit(rows(), steps_per_epoch=3, verbose=0)
"""
ONE_LEAVES = """
class Leave(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if rank == "1" and batch == 1:
            raise ValueError("only here")
model.fit(x, x[:, :2], batch_size=2, verbose=0, callbacks=[Leave()])
"""
ONE_DIES = """
class Die(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        print("epoch", epoch, flush=True)
        if rank == "1" and epoch == 2 and not os.environ.get("MATEX_DIED"):
            os.kill(os.getpid(), signal.SIGKILL)
back = keras.callbacks.BackupAndRestore(f"back{rank is None}")
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Dense(2)])
model.compile("adam", "mse")
x *= np.arange(8)[:, None]
history = model.fit(x, x[:, :2], batch_size=3, shuffle=False, epochs=3, verbose=0, callbacks=[back, Die()])
print(history.history["loss"][-1])
"""
OWN_LOOP = """
import jax
model.build((None, 4))
loss = lambda weights: model.stateless_call(weights, [], x)[0].mean()
jax.grad(loss)([weight.value for weight in model.trainable_variables])
"""
LATE = """
import jax.numpy as jnp
jnp.ones(3).sum()
os.environ["KERAS_BACKEND"] = "jax"
"""
SCRIPTS = {
    "other rows": (BEGIN + OTHER_ROWS, (), 1, "Every rank makes the whole data, and takes its rows"),
    "one leaves": (BEGIN + RANK + ONE_LEAVES, (), 1, "ValueError: only here"),
    "one dies": (BEGIN + RANK + ONE_DIES, ("--faults", "restart"), 0, "restart 1 of 3"),
    "shrink": (BEGIN, ("--faults", "shrink"), 2, "take --faults restart (docs/jax.md)"),
    "own loop": (BEGIN + OWN_LOOP, (), 0, "nothing was split: JAX trained on each of 2 ranks"),
    "eager": (
        BEGIN + "model.run_eagerly = True\nmodel.fit(x, x[:, :2], verbose=0)",
        (),
        0,
        "steps of Keras on JAX that",
    ),
    "distribution": (
        "import keras\nwhole = keras.distribution.list_devices()"
        "\nkeras.distribution.set_distribution(keras.distribution.DataParallel(devices=whole[:1]))",
        (),
        1,
        "its mesh has the devices cpu:0, and needs one of each of 2 ranks",
    ),
    "late": (
        "import os\nos.environ.pop('KERAS_BACKEND')" + LATE + BEGIN + "model.fit(x, x[:, :2], verbose=0)",
        (),
        0,
        "the script has used JAX before it imported Keras",
    ),
}


@pytest.mark.variants(0)
@pytest.mark.parametrize("form", SCRIPTS)
def test_scripts(form, tmp_path):
    """Nothing hangs, and one report says what happened."""
    text, flags, code, said = SCRIPTS[form]
    (tmp_path / "script.py").write_text(text)
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['tensorflow'] = None\n")
    command = [LAUNCHER, "run", "-n", "2", *flags, "script.py"]
    ended = Job(command, tmp_path, PYTHONPATH=str(tmp_path), **QUICK).end(200)
    assert (ended.code, ended.err.count(said)) == (code, 1), ended.err
    if form == "one dies":
        alone = Job([sys.executable, "script.py"], tmp_path, PYTHONPATH=str(tmp_path), **QUICK).end(100).out.split()
        *epochs, loss = ended.out.split()
        assert epochs == ["epoch", "0", "epoch", "1", "epoch", "2", "epoch", "2"], ended.out
        assert float(loss) == pytest.approx(float(alone[-1]), rel=1e-4)


COMMANDS = {
    "verify": (("verify", "-n", "2", "--steps", "4", "script.py"), "2 ranks give the "),
    "plan": (("plan", "-n", "2", "--steps", "5", "script.py"), "with the exchange that XLA makes in it"),
}


@pytest.mark.variants(0)
@pytest.mark.parametrize("command", [case(feature, feature) for feature in COMMANDS])
def test_commands(command, tmp_path):
    """What `matex-tf verify` and `plan` say of a script of Keras on JAX."""
    words, said = COMMANDS[command]
    (tmp_path / "script.py").write_text(BEGIN + "model.fit(x, x[:, :2], batch_size=3, epochs=2, verbose=0)")
    ended = Job([LAUNCHER, *words], tmp_path, **QUICK).end(200)
    assert ended.code == 0 and said in ended.out, ended


ANSWERS = "test_the_answer_of_one_rank"


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """By the number of ranks, what each rank came to, by case; and what the user was told.

    With the most ranks there is no TensorFlow, nor is there any where no case needs it.
    """
    sizes, jobs = ((1, 2, 3) if request.config.getoption("--all") else (1, 2)), {}
    items = [item for item in request.session.items if item.path == request.path and item.originalname == ANSWERS]
    asked = [item.callspec.params["case"] for item in items]
    cases = [case for case in asked if case != "grains" or importlib.util.find_spec("grain")]
    for size in sizes:
        folder, environ, those = tmp_path_factory.mktemp(f"ranks{size}"), dict(QUICK), cases
        launcher = [sys.executable] if size == 1 else [LAUNCHER, "run", "-n", str(size)]
        if size == 3 or not WITH_TENSORFLOW.intersection(cases):
            (folder / "sitecustomize.py").write_text("import sys\nsys.modules['tensorflow'] = None\n")
            environ["PYTHONPATH"] = str(folder)
            those = [case for case in cases if case not in WITH_TENSORFLOW]
        jobs[size] = folder, Job([*launcher, SCRIPT, str(folder), *those], folder, **environ)
    found = {}
    for size, (folder, job) in jobs.items():
        ended = job.end(1400)
        assert ended.code == 0, ended.err
        found[size] = pickle.loads((folder / f"results.{size}").read_bytes()), ended
    return found


@pytest.mark.variants(len(FIRST))
@pytest.mark.parametrize("case", CASES)
def test_the_answer_of_one_rank(trained, case):
    found = {size: [one[case] for one in everyone if case in one] for size, (everyone, _) in trained.items()}
    if not found[1]:
        pytest.skip("Grain is not installed")
    same({size: values for size, values in found.items() if values}, rtol=2e-4, atol=2e-5)


def test_what_is_said(trained):
    """The steps were shared out: nothing says that they were not, and each rank is named once."""
    for size, (everyone, ended) in trained.items():
        assert len(everyone) == size
        whole = {"noises", "ways", "eager", "adversaries"} & set(everyone[0])  # steps that Keras does not compile
        assert whole or "was split" not in ended.err and "each rank trains whole" not in ended.err
