"""Functions under `hvd.elastic.run` when a rank dies: the others go on from their last commit."""

import re

import pytest
from jobs import LAUNCHER, Job
from there import needs

pytestmark = pytest.mark.timeout(240)

#: A rank dies two steps after a commit. The graph of `step` is older than the death, its average is not.
TRAIN = """
import os, signal, sys
import keras, numpy as np, tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()
first, dies = hvd.rank(), int(sys.argv[1])
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
optimizer = keras.optimizers.SGD(0.1)
optimizer.build(model.trainable_variables)
x = tf.constant(np.random.default_rng(first).normal(size=(8, 3)), tf.float32)
resets, began = [], []

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - 2.0) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return tf.concat([hvd.allreduce(tf.ones([2])), hvd.reducescatter(tf.ones([12]), op=hvd.Average)], 0)

@hvd.elastic.run
def train(state):
    began.append((state.batch, hvd.size()))
    while state.batch < 12:
        if first == dies and state.batch == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        np.testing.assert_allclose(step(), 1)
        state.batch += 1
        if state.batch % 5 == 0:
            state.commit()
    return hvd.allgather_object([weight.tolist() for weight in model.get_weights()])

state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)
state.register_reset_callbacks([lambda: resets.append(hvd.size())])
weights = train(state)
assert all(one == weights[0] for one in weights), weights
updates = int(optimizer.iterations.numpy())
print("rank", hvd.rank(), "of", hvd.size(), "ended", state.batch, updates, resets, began, flush=True)
"""

#: A rank raises the error by itself: nobody has died, and all go back.
RAISE = """
import horovod.tensorflow as hvd
hvd.init()
tries = []

@hvd.elastic.run
def train(state):
    tries.append(state.step)
    for state.step in range(state.step, 6):
        hvd.barrier()
        if state.step == 3:
            state.commit()
        if state.step == 4 and hvd.rank() == 1 and len(tries) == 1:
            raise hvd.elastic.HorovodInternalError("this rank wants to go back")

train(hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0))
print("rank", hvd.rank(), "tried", tries, flush=True)
"""


#: Two functions, the first with commits around a `fit`; a rank dies in the first job, behind the third commit of one.
AGAIN = """
import os, signal, sys
import keras, numpy as np, tensorflow as tf
import horovod.tensorflow.keras as hvd
hvd.init()
keras.utils.set_random_seed(1)
x = np.random.default_rng(hvd.rank()).normal(size=(48, 3)).astype("float32")
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
began = []

def may_die(where):
    if sys.argv[1] == where and hvd.rank() == 1 and not os.path.exists("died"):
        with open("died", "w"):
            os.kill(os.getpid(), signal.SIGKILL)

@hvd.elastic.run
def fits(state):
    began.append(("fits", state.epoch))
    while state.epoch < 5:
        if state.epoch == 4:
            may_die("fits")
        model.fit(x, x[:, :2], batch_size=8, epochs=1, shuffle=False, verbose=0)
        state.epoch += 1
        state.commit()

@hvd.elastic.run
def loop(state):
    began.append(("loop", state.batch))
    for state.batch in range(state.batch, 10):
        if state.batch == 7:
            may_die("loop")
        model.train_on_batch(x[:8], x[:8, :2])
        if state.batch % 3 == 2:
            state.batch += 1
            state.commit()
            state.batch -= 1

fits(hvd.elastic.KerasState(model, epoch=0))
loop(hvd.elastic.KerasState(model, batch=0))
total = float(sum(abs(w).sum() for w in model.get_weights()))
updates = int(model.optimizer.iterations.numpy())
print(f"rank {hvd.rank()} of {hvd.size()} ended {total:.5f} {updates} {began}", flush=True)
"""


def run(tmp_path, server, text, *words):
    """What a script prints on 4 ranks that may die."""
    (tmp_path / "script.py").write_text(text)
    line = [LAUNCHER, "run", "-n", "4", "--faults", "shrink", "--output", "all", "script.py", *words]
    job = Job(line, tmp_path, **server.environ)
    ended = job.end(120)
    left = [path for path in job.left() if "__autograph_generated_file" not in path]  # TensorFlow's, of the dead
    assert ended.code == 0 and not left, ended
    return ended


@pytest.mark.variants(1)
@pytest.mark.parametrize("dies", [0, 1])
def test_a_rank_dies(tmp_path, server, dies):
    """All go back to the last commit, with a state that is rank 0's, and averages are those of the ranks left."""
    ended = run(tmp_path, server, TRAIN, str(dies))
    said = re.findall(r"rank (\d) of 3 ended 12 12 \[3\] \[\(0, 4\), \(5, 3\)\]", ended.out)
    assert sorted(said) == ["0", "1", "2"], ended
    assert f"rank {dies} of 4 on" in ended.err and "3 ranks continue\n" in ended.err, ended


def test_a_rank_asks_for_it(tmp_path, server):
    """`HorovodInternalError` on one rank is the same to all others as a rank that has died."""
    ended = run(tmp_path, server, RAISE)
    assert sorted(re.findall(r"rank (\d) tried \[0, 3\]", ended.out)) == ["0", "1", "2", "3"], ended
    assert "died" not in ended.err


def trained_again(folder, server, dies):
    """What each rank of a job that may start again has come to: weights, updates, and where its functions began."""
    (folder / "script.py").write_text(AGAIN)
    flags = ["--faults", "restart", "--checkpoint-seconds", "0", "--output", "all"]
    job = Job([LAUNCHER, "run", "-n", "2", *flags, "script.py", dies], folder, **server.environ)
    ended = job.end(120)
    found = re.findall(r"rank \d of 2 ended (.*) (\d+) \[\('fits', (\d)\), \('loop', (\d)\)\]", ended.out)
    assert ended.code == 0 and len(found) == 2 and found[0] == found[1] and not job.left(), ended
    return found[0], ended.err


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, server):
    """The weights and updates of a job in which nobody dies."""
    return trained_again(tmp_path_factory.mktemp("undisturbed"), server, "nowhere")[0]


@needs("restart")
@pytest.mark.variants(1)
@pytest.mark.parametrize("dies", ["fits", "loop"])
def test_a_job_starts_again(tmp_path, server, undisturbed, dies):
    """It goes on from the last commit that was written, and ends as one in which nobody died."""
    (*weights, fits, batch), said = trained_again(tmp_path, server, dies)
    assert undisturbed == (*weights, "0", "0") and weights[1] == "40"
    # A commit may come while the one before is still being written, and is not written then.
    assert (fits in "234" and batch == "0") if dies == "fits" else (fits in "45" and batch in "36"), (fits, batch)
    assert f"elastic function {1 if dies == 'fits' else 2} continues from its commit " in said, said
