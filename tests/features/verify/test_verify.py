"""`matex-tf verify`: a training on several ranks beside that on one."""

import numpy as np
import pytest
from jobs import LAUNCHER, Job
from there import needs_keras_2

from matex_tf.features.verify import command, compare, judge, record
from matex_tf.features.verify.record import BATCH, SLOTS, WEIGHTS, Moment
from tests.features.verify import verified
from tests.features.verify.cases import chains
from tests.features.verify.cases.chains import CHAIN, WRONG
from tests.support.cases import metrics, models

#: Trains by `fit`, then by a loop of its own.
SCRIPT = """
import os
import keras
import matex_tf
import numpy as np
import tensorflow as tf
keras.utils.set_random_seed(1)
random = np.random.RandomState(0)
x, y = random.normal(size=(60, 5)).astype("float32"), random.normal(size=(60, 1)).astype("float32")
x = x * (%s if matex_tf.size() > 1 else 1)
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
%s
"""
FIT = "model.fit(x, y, batch_size=14, epochs=2, validation_split=0.2, verbose=0)"
LOOP = """
for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(14):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(a) - b))
    model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
"""


@pytest.mark.variants(1)
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("factor", "how", "code"), [(1.01, FIT, 1), (1, FIT, 0), (1, LOOP, 0)])
def test_script(server, tmp_path, factor, how, code):
    """Code 0 and a table where both are the same; 1, and since when, where they are not."""
    (tmp_path / "script.py").write_text(SCRIPT % (factor, how))
    job = Job([LAUNCHER, "verify", "-n", "3", "--steps", "0", "script.py"], tmp_path, **server.environ)
    ended = job.end(200)
    assert ended.code == code, ended.out + ended.err
    kinds = [WEIGHTS, SLOTS, *([BATCH, "epoch logs", "evaluation"] if how == FIT else [])]
    assert all(f"│ {kind}" in ended.out for kind in kinds), ended
    assert ("3 ranks give the answer of one rank" in ended.out) == (code == 0), ended
    assert ("never" in ended.out) == (code == 0), ended


#: The same with Keras 2, by `fit`, by `train_on_batch` and by a loop of its own.
KERAS_2 = """
import numpy as np
import tensorflow as tf
random = np.random.RandomState(0)
x, y = random.normal(size=(60, 5)).astype("float32"), random.normal(size=(60, 1)).astype("float32")
keras = tf.keras
assert keras.Model.__module__.startswith("tf_keras")
model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
model.fit(x, y, batch_size=14, epochs=1, validation_split=0.2, verbose=0)
model.train_on_batch(x[:10], y[:10])
optimizer = keras.optimizers.legacy.SGD(0.1, momentum=0.9)
for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(14):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(a) - b))
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
"""


@pytest.mark.variants(0)
@pytest.mark.timeout(240)
@needs_keras_2()
def test_keras_2(tmp_path):
    """All steps of a script on Keras 2 are recorded: 4 of fit, one by itself, 5 of the loop."""
    (tmp_path / "script.py").write_text(KERAS_2)
    environ = {"TF_USE_LEGACY_KERAS": "1"}
    ended = Job([LAUNCHER, "verify", "-n", "2", "--steps", "0", "script.py"], tmp_path, **environ).end(200)
    assert ended.code == 0 and "2 ranks give the answer of one rank" in ended.out, ended
    for kind in (WEIGHTS, SLOTS, BATCH, "epoch logs", "evaluation"):
        assert f"│ {kind}" in ended.out, ended
    assert "different lines of the script" not in ended.err, ended


def test_nothing_to_compare(server, tmp_path):
    """A script that trains nothing is an error that says so."""
    (tmp_path / "script.py").write_text("print(1)\n")
    ended = Job([LAUNCHER, "verify", "-n", "2", "script.py"], tmp_path, **server.environ).end(100)
    assert ended.code == 1 and "trained nothing that can be compared" in ended.err, ended


def test_record(tmp_path):
    """What was written is read, in its order, with its types."""
    writer = record.Writer(str(tmp_path))
    moments = [
        Moment(BATCH, 1, {"loss": np.float64(0.5), "a/b": np.array([1, 2])}),
        Moment(WEIGHTS, 1, {"w": np.ones((2, 3), np.float16)}),
    ]
    for moment in moments:
        writer.write(moment)
    for expected, got in zip(moments, record.read(tmp_path), strict=True):
        assert (expected.kind, expected.step, list(expected.values)) == (got.kind, got.step, list(got.values))
        for name, value in expected.values.items():
            assert got.values[name].dtype == np.asarray(value).dtype and np.array_equal(got.values[name], value)


def test_compare():
    """The largest difference, where it is, and since when there is more than rounding."""

    def training(*values):
        return [Moment(WEIGHTS, step, {"w": np.array([10.0, one])}) for step, one in enumerate(values, 1)]

    same = compare.compare(training(1, 2, 3), training(1, 2 + 1e-6, 3))
    assert same.within(1e-6) and same.found[WEIGHTS].first is None
    other = compare.compare(training(1, 2, 3), training(1, 2.1, 3.05))
    found = other.found[WEIGHTS]
    assert not other.within(1e-3) and other.within(0.011)
    assert (found.where, found.step, found.first, found.compared) == ("w", 2, 2, 6)
    assert found.largest == pytest.approx(0.01)
    shorter = compare.compare(training(1, 2, 3), training(1, 2))
    assert not shorter.within(1) and "after step 3: on one rank alone" in shorter.unequal[0]
    assert not compare.compare([], []).within(1)


def test_rounding():
    """What differs no more than rounding makes it differ is left out; what differs more, or earlier, is not."""

    def training(bias, kernel=1.0):
        for step, value in enumerate(bias, 1):
            yield Moment(WEIGHTS, step, {"kernel": np.array([kernel]), "bias": np.array([value])})

    rounding = compare.Rounding()
    rounding.add(training([0.01, 0.02, 0.03]), training([0.01, 0.02, 0.028]))
    rounding.add(training([0.01, 0.02, 0.03]), training([0.01, 0.021, 0.03]))
    left_out = compare.compare(training([0.01, 0.02, 0.03]), training([0.01, 0.022, 0.034]), 1e-3, rounding)
    assert left_out.within(1e-3) and left_out.left_out == {"bias"} and left_out.found[WEIGHTS].compared == 4
    for other in (training([0.01, 0.02, 0.06]), training([0.01, 0.02, 0.03], kernel=1.01)):
        assert not compare.compare(training([0.01, 0.02, 0.03]), other, 1e-3, rounding).within(1e-3)
    late = compare.Rounding()
    late.add(training([0.01] * 9), training([0.01] * 8 + [0.02]))
    assert not compare.compare(training([0.01] * 9), training([0.02] + [0.01] * 8), 1e-3, late).within(1e-3)


@pytest.fixture(scope="module")
def recorded(request):
    """Ranks that start once, and write down what they train."""
    pool = verified.recording_pool()
    held = verified.Recorded(pool)
    yield held
    pool.close()
    held.close()


@pytest.mark.variants(1)
@pytest.mark.parametrize("wrong", ["", *WRONG])
def test_wrong_scripts(recorded, wrong):
    """A right script passes though Adam makes steps of rounding, and a wrong one is told."""
    recorded.run(chains.chain, (1, 2), {"wrong": wrong})
    found = recorded.judge(recorded.waiting.pop())
    assert found.repeats and found.same == (not wrong), verified.described(found)
    assert wrong or any(name.endswith("/bias") for name in found.found.left_out), verified.described(found)


@pytest.mark.parametrize(
    ("case", "kwargs"),
    [
        (models.clipped_in_the_step, {"gradient_accumulation_steps": 2}),  # a rank accumulates a part of its own
        (metrics.nested, {}),
        (chains.variables_of_tensorflow, {}),
    ],
    ids=["accumulation", "logs that nest", "variables of TensorFlow"],
)
def test_right_cases(recorded, case, kwargs):
    """Where the answer is that of one rank, it is found to be; `scripts/verify_cases` has all cases of same answers."""
    recorded.run(case, (1, 2), kwargs)
    found = recorded.judge(recorded.waiting.pop())
    assert found.same, verified.described(found)


@pytest.mark.variants(0)
@pytest.mark.timeout(400)
@pytest.mark.parametrize("wrong", ["", "rate"])
def test_chain(server, tmp_path, wrong):
    """The same of whole scripts, by the command."""
    before, after = WRONG.get(wrong, ("", ""))
    text = f'import os\nseveral = "OMPI_COMM_WORLD_SIZE" in os.environ\n{CHAIN % (before, after)}'
    (tmp_path / "script.py").write_text(text)
    ended = Job([LAUNCHER, "verify", "-n", "2", "script.py"], tmp_path, **server.environ).end(380)
    assert ended.code == (1 if wrong else 0), ended
    assert ("2 ranks give the answer of one rank" in ended.out) == (not wrong), ended
    assert ("do NOT give the answer of one rank: " in ended.out) == bool(wrong), ended
    if not wrong:
        assert "rounding alone" in ended.out and "/bias" in ended.out, ended


#: Rows of the ranks' own, as arrays and as they are read.
ROWS = """
import keras
import numpy as np
from matex_tf import DataSet
data = DataSet.open("data.npz", one_hot=True)
keras.utils.set_random_seed(1)
scale = keras.layers.Normalization()
scale.adapt(data.data)
drop = keras.layers.Dropout(0.3)
head = [keras.layers.Dense(8, activation="relu"), drop, keras.layers.Dense(3, activation="softmax")]
model = keras.Sequential([keras.Input((4,)), scale, *head])
model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
x = data.data
%s
model.fit(x, data.labels, batch_size=16, epochs=1, verbose=0)
model.evaluate(x, data.labels, verbose=0)
model.fit(data.to_tf_data(16, shuffle=True), epochs=1, verbose=0)
"""


@pytest.mark.variants(0)
@pytest.mark.timeout(400)
@pytest.mark.parametrize("wrong", ["", "x = np.asarray(x) - np.asarray(x).mean(axis=0)"])
def test_data_set(server, tmp_path, wrong):
    """A right script with a `DataSet` passes; one that computes with a statistic of a rank's own rows is told."""
    random = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=random.normal(size=(101, 4)).astype("float32"), y=np.arange(101) // 34)
    (tmp_path / "script.py").write_text(ROWS % wrong)
    ended = Job([LAUNCHER, "verify", "-n", "2", "--steps", "0", "script.py"], tmp_path, **server.environ).end(380)
    assert ended.code == (1 if wrong else 0), ended
    assert ("2 ranks give the answer of one rank" in ended.out) == (not wrong), ended


@pytest.mark.timeout(300)
def test_no_seed(server, tmp_path):
    """A script that does not repeat itself on one rank is not held against several: that is what is said."""
    (tmp_path / "script.py").write_text(
        SCRIPT.replace("RandomState(0)", "RandomState(matex_tf.size() if matex_tf.size() > 1 else os.getpid())")
        % (1, FIT)
    )
    ended = Job([LAUNCHER, "verify", "-n", "2", "script.py"], tmp_path, **server.environ).end(280)
    assert ended.code == 1 and "does not repeat itself on one rank" in ended.out and "set_random_seed" in ended.out, (
        ended
    )
    assert "answer of one rank" not in ended.out, ended


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (np.array([np.nan, 1.0]), np.array([np.nan, 1.0]), 0.0),
        (np.array([np.nan, 1.0]), np.array([0.0, 1.0]), np.inf),
        (np.zeros(2), np.array([0.0, 1e-9]), pytest.approx(1e-5)),
        (np.array([np.inf, 2.0]), np.array([np.inf, 1.0]), 0.5),
        (np.array(["a"]), np.array(["b"]), np.inf),
        (np.zeros(0), np.zeros(0), 0.0),
    ],
)
def test_difference(one, other, expected):
    """Of what is no number, too."""
    assert compare.difference(one, other) == expected


#: What is soon recorded.
SMALL = """
import numpy as np, keras
from keras import layers
x = np.random.RandomState(0).normal(size=(83, 5)).astype("float32")
model = keras.Sequential([keras.Input((5,)), layers.Dense(16, activation="relu"), layers.Dropout(0.3), layers.Dense(1)])
model.compile("adam", "mse", metrics=["mae"])
model.fit(x, x[:, :1], batch_size=18, epochs=2, verbose=0)
"""


@pytest.mark.variants(0)
@pytest.mark.timeout(240)
def test_reproducible(tmp_path):
    """With `--reproducible` there is no difference at all."""
    (tmp_path / "script.py").write_text(SMALL)
    words = ["verify", "-n", "2", "--steps", "8", "--reproducible", "4", "script.py"]
    ended = Job([LAUNCHER, *words], tmp_path).end(180)
    assert ended.code == 0 and "2 ranks give the bits of one rank" in ended.out, ended


@pytest.mark.parametrize(
    ("found", "unequal", "said"),
    [
        ({"weights": compare.Found(9, 2e-7, "a/bias", 3)}, [], "4 ranks give the answer of one rank, to 0.001"),
        ({"weights": compare.Found(9)}, [], "4 ranks give the bits of one rank"),
        (
            {"weights": compare.Found(9, 0.2, "a/bias", 3, 2), "batch logs": compare.Found(9, 0.588, "loss", 7, 1)},
            ["one rank has no a/bias"],
            "4 ranks do NOT give the answer of one rank: batch logs differ by 0.59, first in step 1 (tolerance 0.001)",
        ),
        (
            {"weights": compare.Found(9, 2e-7, "a/bias", 3)},
            ["one rank has no a/bias"],
            "4 ranks do NOT give the answer of one rank: see above (tolerance 0.001)",
        ),
    ],
)
def test_verdict(capsys, found, unequal, said):
    """How far several ranks are from one, and since when."""
    compared = compare.Comparison(found, unequal)
    command.say(judge.Judgement(compared, True, compared.within(0.001)), 4, 0.001)
    assert capsys.readouterr().out == said + "\n"
