"""Functions under `hvd.elastic.run` when a rank dies: the others go on from their last commit."""

import re

import pytest
from jobs import LAUNCHER, Job

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
print("rank", hvd.rank(), "of", hvd.size(), "ended", state.batch, int(optimizer.iterations), resets, began, flush=True)
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


def run(tmp_path, text, *words):
    """What a script prints on 4 ranks that may die."""
    (tmp_path / "script.py").write_text(text)
    job = Job([LAUNCHER, "run", "-n", "4", "--faults", "shrink", "--output", "all", "script.py", *words], tmp_path)
    ended = job.end(120)
    left = [path for path in job.left() if "__autograph_generated_file" not in path]  # TensorFlow's, of the dead
    assert ended.code == 0 and not left, ended
    return ended


@pytest.mark.variants(1)
@pytest.mark.parametrize("dies", [0, 1])
def test_a_rank_dies(tmp_path, dies):
    """All go back to the last commit, with a state that is rank 0's, and averages are those of the ranks left."""
    ended = run(tmp_path, TRAIN, str(dies))
    said = re.findall(r"rank (\d) of 3 ended 12 12 \[3\] \[\(0, 4\), \(5, 3\)\]", ended.out)
    assert sorted(said) == ["0", "1", "2"], ended
    assert f"rank {dies} of 4 on" in ended.err and "3 ranks go on\n" in ended.err, ended


def test_a_rank_asks_for_it(tmp_path):
    """`HorovodInternalError` on one rank is the same to all others as a rank that has died."""
    ended = run(tmp_path, RAISE)
    assert sorted(re.findall(r"rank (\d) tried \[0, 3\]", ended.out)) == ["0", "1", "2", "3"], ended
    assert "died" not in ended.err
