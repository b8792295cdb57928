"""Training in Horovod scripts: the answer of one process that has the rows of all."""

import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from jobs import BIN, LAUNCHER, Job
from there import needs

from matex_tf.errors import SettingError
from matex_tf.features.horovod import alias
from matex_tf.features.horovod import command as horovodrun
from matex_tf.patches.common import wrapping
from matex_tf.state import run_state
from matex_tf.state.run_state import RunState
from tests.features.horovod.cases import horovod_commits, horovod_training

pytestmark = pytest.mark.variants(2)

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "horovod_digits.py"


@pytest.mark.parametrize(
    "case",
    [
        horovod_training.fit,
        horovod_training.passes,
        horovod_training.embedding,
        horovod_training.tape,
        horovod_training.with_callbacks,
        horovod_training.states,
    ],
)
@pytest.mark.smoke
def test_answer_of_one(ranks, case):
    """Weights, logs and rates are those of one process, for every option."""
    for size, values in ranks(case, (2,), meets="").items():
        for rank, wrong in enumerate(values):
            assert wrong == {}, f"rank {rank} of {size}: {wrong}"


@pytest.mark.parametrize(
    "case", [horovod_training.batch_norm, horovod_training.momentum_correction, horovod_training.timeline]
)
def test_right(ranks, case):
    """Batch normalization over all rows; momentum at a new rate; a timeline."""
    apart = "each rank corrects its own momentum" if case is horovod_training.momentum_correction else ""
    assert ranks(case, (2,), meets="", apart=apart) == {2: [True] * 2}


@pytest.mark.parametrize(("passes", "count"), [(1, 4), (2, 4)])
def test_optimizer_of_a_session(ranks, passes, count):
    """tf.compat.v1 optimizers, with gradients of several passes added up, and the global step."""
    for size, values in ranks(horovod_training.session_optimizer, meets="", passes=passes).items():
        assert values == [(True, count)] * size


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("where", ["session", "eager"])
def test_adasum_optimizer(ranks, passes, where):
    """Moves combined by Adasum, against NumPy: in sessions, eagerly and in a tf.function."""
    for size, values in ranks(horovod_training.adasum_optimizer, (4,), meets="", passes=passes, where=where).items():
        for rank, wrong in enumerate(values):
            assert wrong == {}, f"rank {rank} of {size}: {wrong}"


def test_functions_of_keras(ranks):
    """Collectives of horovod.keras."""
    assert ranks(horovod_training.keras_functions, (1, 3), meets="") == {1: [[True] * 5], 3: [[True] * 5] * 3}


def test_example(tmp_path, server):
    """The example learns, and every rank ends with the same model."""
    line = [LAUNCHER, "horovodrun", "-np", "4", "--verbose", "python", str(EXAMPLE)]
    ended = Job(line, tmp_path, **server.environ).end(240)
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    assert "no effect with matex_tf: --verbose" in ended.err
    assert "the Horovod names are served by matex_tf" in ended.err
    assert "finished gradual learning rate warmup to 0.08" in ended.out
    found = re.search(r"accuracy ([\d.]+), 1 different on 4 ranks", ended.out)
    assert found and float(found[1]) > 0.9, f"{ended.out}\n{ended.err}"


def test_gradients_that_were_computed(ranks):
    """What `_compute_gradients` has reduced is not reduced again where it is applied."""
    assert ranks(horovod_training.computed_gradients, (3,), meets="") == {3: [{}] * 3}


NAMES = """
import sys
if sys.argv[1] == "explicit":
    import matex_tf.horovod.names
try:
    import horovod.tensorflow as hvd
except ImportError as error:
    print("refused", error)
else:
    import horovod, horovod.keras, horovod.tensorflow.keras.callbacks
    from horovod.tensorflow import elastic
    if not hasattr(hvd, "real"):
        from horovod.common.util import is_version_greater_equal_than as later
        from horovod.runner.common.util.env import get_env_rank_and_size
        assert get_env_rank_and_size() == (0, 1) and later("2.16.0+cpu", "2.9") and not later("2.9.1", "2.10.0")
    hvd.init()
    if not hasattr(hvd, "real"):
        assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: [0]} and hvd.mpi_ops._basics.rank() == 0
        try:
            import horovod.runner.launch
        except ModuleNotFoundError as error:
            assert "matex-tf run" in str(error), error
    print(hvd.__name__, getattr(hvd, "real", False), hvd.size(), horovod.__version__)
"""


@pytest.mark.parametrize(
    ("how", "installed", "printed"),
    [
        ("plain", False, "refused No module named 'horovod'"),
        ("explicit", False, "horovod.tensorflow False 1 0.28.1"),
        ("explicit", True, "horovod.tensorflow False 1 0.28.1"),
        ("run", False, "horovod.tensorflow False 1 0.28.1"),
        ("run", True, "horovod.tensorflow True 1 9"),
    ],
)
def test_whose_names(tmp_path, how, installed, printed):
    """Under the launcher where no Horovod is installed; after the import by name in any case."""
    if installed:
        for name in ("", "keras", "tensorflow", "tensorflow/elastic", "tensorflow/keras", "tensorflow/keras/callbacks"):
            folder = tmp_path / "horovod" / name
            folder.mkdir(parents=True, exist_ok=True)
            text = "__version__ = 9\nreal = True\ndef init(): pass\ndef size(): return 1\n"
            (folder / "__init__.py").write_text(text)
    (tmp_path / "script.py").write_text(NAMES)
    runner = ["-m", "matex_tf"] if how == "run" else []
    done = subprocess.run(
        [sys.executable, *runner, "script.py", how], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == printed, done.stdout + done.stderr


FIT = """
import os, random
import keras, numpy as np, tensorflow as tf
import horovod.keras as hvd
hvd.init()
np.save("own%d.npy" % hvd.rank(), np.arange(3))
x = np.full((8 + hvd.rank(), 2), 1.0 + hvd.rank(), "float32")
seen = []
class Seen(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.save("model%d.keras" % hvd.rank())
        seen.append(logs["loss"])
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
model.compile("sgd", "mse")
steps = []
model.fit(x, x[:, :1], batch_size=4, epochs=1, verbose=0, callbacks=[Seen(), keras.callbacks.LambdaCallback(
    on_train_batch_end=lambda batch, logs: steps.append(batch))])
files = sorted(name for name in os.listdir(".") if name.endswith((f"own{hvd.rank()}.npy", f"model{hvd.rank()}.keras")))
w, optimizer, rows = tf.Variable(1.0), keras.optimizers.SGD(1.0), 0
for batch in tf.data.Dataset.from_tensor_slices(x[:8]).batch(4):
    rows += len(batch)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(batch) * w
    optimizer.apply_gradients([(tape.gradient(loss, w), w)])
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    v = tf.compat.v1.get_variable("v", initializer=float(hvd.rank()), use_resource=True)
    train = tf.compat.v1.train.GradientDescentOptimizer(1.0).minimize(v * hvd.rank())
    session.run(tf.compat.v1.global_variables_initializer())
    session.run(train)
    value = float(session.run(v))
mine = len(steps), round(seen[0], 3), files, random.random(), float(tf.random.uniform([])), (rows, float(w), value)
if hvd.rank() == 0:
    print(hvd.allgather_object(mine))
else:
    hvd.allgather_object(mine)
"""


def test_nothing_behind_its_back(tmp_path, server):
    """Without a word of the script nothing is shared out, averaged, or written by one rank; ranks draw differently."""
    (tmp_path / "script.py").write_text(FIT)
    ended = Job([LAUNCHER, "run", "-n", "3", "--seed", "5", "script.py"], tmp_path, **server.environ).end(180)
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    values = eval(ended.out.strip().splitlines()[-1])
    assert [value[0] for value in values] == [2, 3, 3]
    assert len({value[1] for value in values}) == 3
    assert [value[2] for value in values] == [[f"model{rank}.keras", f"own{rank}.npy"] for rank in range(3)]
    assert [value[5] for value in values] == [(8, 1 - 2 * (1.0 + rank), 0.0) for rank in range(3)]
    assert len({value[3] for value in values}) == len({value[4] for value in values}) == 3


@pytest.mark.parametrize("listed", ["4,5,6", None])
def test_gpus_of_the_node(monkeypatch, listed):
    """A rank that was given one GPU sees those of the node again: the script takes its own by local_rank()."""
    run = RunState()
    run.patched = True
    run.begin(run_state.Devices(listed, shared_out=True))
    monkeypatch.setattr(run_state, "_run", run)
    monkeypatch.setattr(alias, "wrapt", mock.Mock())  # or Keras, imported by a later test, is made Keras 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    alias.put_patches_aside()
    assert wrapping.is_aside() and os.environ.get("CUDA_VISIBLE_DEVICES") == listed


def translate(words):
    """The words for `matex-tf run`, and the options that have no effect."""
    given = horovodrun.parser().parse(words)
    return horovodrun._translated(given), given.ignored


@pytest.mark.parametrize(
    ("given", "words", "ignored"),
    [
        (
            ["-np", "4", "python", "train.py", "-x"],
            ["-n", "4", "--output", "all", "train.py", "-x"],
            [],
        ),
        (
            ["-np", "2", "-H", "a:1,b:1", "--timeline-filename", "t.json", "--fusion-threshold-mb", "8", "x.py"],
            ["-n", "2", "--hosts", "a:1,b:1", "--trace", "t.json", "--bucket-mb", "8", "--output", "all", "x.py"],
            [],
        ),
        (
            ["--gloo", "--cycle-time-ms=5", "--output-filename", "d", "python3.11", "-u", "-m", "pkg"],
            ["--output", "d", "-m", "pkg"],
            ["--gloo", "--cycle-time-ms"],
        ),
    ],
)
def test_command_line(given, words, ignored):
    """Horovod's options in the words of matex-tf run."""
    assert translate(given) == (words, ignored)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["-np"], "-np needs a value"),
        (["--host-discovery-script", "x.sh", "python", "x.py"], "keeps the hosts"),
        (["--what", "python", "x.py"], "no option --what"),
        (["-np", "2", "bash", "x.sh"], "can start Python"),
        (["-np", "2"], "no command"),
        (["--hostfile", "nowhere", "python", "x.py"], "cannot be read"),
    ],
)
def test_bad_command_line(given, words):
    """What is wrong with it, and what to do."""
    with pytest.raises(SettingError, match=re.escape(words)):
        translate(given)


def test_hostfile(tmp_path):
    """Hosts and slots, one on each line."""
    (tmp_path / "hosts").write_text("a slots=4  # the first\n\nb:2\nc\n")
    words, _ = translate(["--hostfile", str(tmp_path / "hosts"), "python", "x.py"])
    assert words[:2] == ["--hosts", "a:4,b:2,c"]
    (tmp_path / "hosts").write_text("a slots=4\n-oProxyCommand=x slots=2\n")
    with pytest.raises(SettingError, match="hosts, line 2: '-oProxyCommand=x' cannot be the name of a host"):
        translate(["--hostfile", str(tmp_path / "hosts"), "python", "x.py"])


def test_another_horovodrun_stays(tmp_path):
    """`--install` puts a command beside matex-tf, and leaves one that is not its own alone."""
    binary = tmp_path / "bin"
    binary.mkdir()
    (binary / "horovodrun").write_text("#!/bin/sh\necho the real one\n")
    (binary / "horovodrun").chmod(0o755)
    done = subprocess.run(
        [LAUNCHER, "horovodrun", "--install"],
        capture_output=True,
        text=True,
        env={"PATH": f"{binary}:{BIN}:/usr/bin:/bin"},
    )
    assert done.returncode == 2 and "which stays" in done.stderr
    assert "the real one" in (binary / "horovodrun").read_text()


@needs("restart")
def test_a_commit_of_an_object(ranks):
    """It is not written, with a line that names the attribute; the one before stays, and later ones are written."""
    places, objects, variables, said = ranks(horovod_commits.commit, (1,))[1][0]
    assert places == [4, 1] and objects == {"batch": 3, "sampler": [6]} and variables == [1, 2]
    assert len(said) == 1 and "elastic function 1 are not written while state.sampler is a Seen" in said[0], said
