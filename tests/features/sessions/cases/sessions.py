"""Scripts in the style of TensorFlow 1, each in a graph of its own."""

from __future__ import annotations

import glob
import os

import numpy as np
import tensorflow as tf

from matex_tf.core import world
from tests.support.cases.common import table

v1 = tf.compat.v1


def network(sparse=False):
    """Placeholders, mean loss, logits; two layers, or an embedding before them."""
    v1.set_random_seed(7)
    y = v1.placeholder(tf.int32, [None], name="y")
    if sparse:
        x = v1.placeholder(tf.int32, [None, 4], name="x")
        table_of_words = v1.get_variable("words", [20, 6], initializer=v1.random_normal_initializer(seed=5))
        hidden = tf.reduce_mean(tf.nn.embedding_lookup(table_of_words, x), axis=1)
    else:
        x = v1.placeholder(tf.float32, [None, 6], name="x")
        hidden = x
    w = v1.get_variable("w", [6, 8], initializer=v1.random_normal_initializer(seed=1))
    v = v1.get_variable("v", [8, 3], initializer=v1.random_normal_initializer(seed=2))
    logits = tf.tanh(hidden @ w) @ v
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    return x, y, logits, loss


def batches(rows=101, size=25):
    """Arrays that every rank has."""
    x, y = table(rows)
    return [(x[low : low + size], y[low : low + size]) for low in range(0, rows, size)]


def trained(optimizer="momentum", how="minimize", rows=101, size=25, sparse=False, own=False):
    """Train for two epochs; what was fetched, and all variables in the end.

    Args:
        optimizer: "momentum", "adam", "adagrad".
        how: "minimize", "clipped" (between compute and apply), "gradients" (tf.gradients and apply_gradients),
            "by hand" (tf.gradients, averaged by name, and assign_sub), "twice" (two optimizers in one run).
        own: whether each rank feeds rows of its own, which together are the batch.
    """
    import matex_tf

    made = {
        "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
        "adam": lambda: v1.train.AdamOptimizer(0.02),
        "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    }[optimizer]
    with tf.Graph().as_default(), v1.Session() as session:
        x, y, logits, loss = network(sparse)
        step = v1.train.get_or_create_global_step()
        if how == "minimize":
            train = made().minimize(loss, global_step=step)
        elif how == "clipped":
            opt = made()
            pairs = opt.compute_gradients(loss)
            clipped, _ = tf.clip_by_global_norm([grad for grad, _ in pairs], 0.2)
            train = opt.apply_gradients(zip(clipped, [v for _, v in pairs], strict=True), global_step=step)
        elif how == "gradients":
            variables = v1.trainable_variables()
            train = made().apply_gradients(zip(tf.gradients(loss, variables), variables, strict=True), global_step=step)
        elif how == "by hand":
            variables = v1.trainable_variables()
            grads = matex_tf.average(tf.gradients(loss, variables), variables)
            train = tf.group(
                *[v1.assign_sub(v, 0.2 * g) for v, g in zip(variables, grads, strict=True)], v1.assign_add(step, 1)
            )
        else:
            w, v = v1.trainable_variables()
            train = tf.group(
                made().minimize(loss, global_step=step, var_list=[w]),
                made().minimize(loss * 2.0 + 1.0, var_list=[v]),
                v1.train.GradientDescentOptimizer(0.01).minimize(tf.reduce_mean(logits**2), var_list=[w, v]),
            )
        session.run(v1.global_variables_initializer())
        fetched = []
        for _ in range(2):
            for a, b in batches(rows, size):
                if sparse:
                    a = (np.abs(a[:, :4]) * 7).astype("int32") % 20
                if own:
                    low, high = (len(a) * (world.rank() + more) // world.size() for more in (0, 1))
                    a, b = a[low:high], b[low:high]
                _, mean, rows_of = session.run([train, loss, logits], {x: a, y: b})
                fetched.append([float(mean), None if own else rows_of])
        x_all, y_all = table(40, seed=1)
        if sparse:
            x_all = (np.abs(x_all[:, :4]) * 7).astype("int32") % 20
        test = float(session.run(loss, {x: x_all, y: y_all}))
        return {
            "fetched": fetched,
            "test": test,
            "variables": [np.asarray(value) for value in session.run(v1.global_variables())],
        }


def initialized(how):
    """Ranks whose initial values differ: all take rank 0's.

    Args:
        how: "initializer", "restored", "monitored".
    """
    with tf.Graph().as_default():
        start = float(world.rank() + 1)
        w = v1.get_variable("w", initializer=tf.constant(start))
        words = v1.get_variable("words", initializer=tf.constant(["a" * (world.rank() + 1)]), trainable=False)
        v1.train.get_or_create_global_step()
        x = v1.placeholder(tf.float32, [None])
        train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean((w - x) ** 2))
        if how == "monitored":
            with v1.train.MonitoredTrainingSession() as session:
                first = session.run([w, words])
                session.run(train, {x: np.arange(10.0)})
                return [float(first[0]), first[1].tolist(), float(session.run(w))]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            if how == "restored":
                saver = v1.train.Saver()
                session.run(w.assign(5.0))
                path = saver.save(session, os.path.join(os.getcwd(), "saved"))
                session.run(w.assign(0.0))
                saver.restore(session, path)
            first = session.run([w, words])
            session.run(train, {x: np.arange(10.0)})
            return [float(first[0]), first[1].tolist(), float(session.run(w))]


def files(tmp):
    """Saver, FileWriter and a monitored session with checkpoints, and a second one that goes on; what is there."""
    said = []
    with tf.Graph().as_default():
        x, y, _, loss = network()
        step = v1.train.get_or_create_global_step()
        train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)
        v1.summary.scalar("loss", loss)
        merged = v1.summary.merge_all()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            saver = v1.train.Saver(max_to_keep=2)
            writer = v1.summary.FileWriter(f"{tmp}/logs", session.graph)
            for number, (a, b) in enumerate(batches()):
                _, text = session.run([train, merged], {x: a, y: b})
                writer.add_summary(text, number)
                said.append(os.path.basename(saver.save(session, f"{tmp}/saved/model", global_step=step)))
            writer.close()
        said.append([os.path.basename(path) for path in saver.last_checkpoints])
        for _ in range(2):
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=f"{tmp}/monitored",
                save_checkpoint_secs=0.01,
                hooks=[v1.train.StopAtStepHook(num_steps=5)],
                save_summaries_steps=2,
            ) as session:
                while not session.should_stop():
                    a, b = batches()[0]
                    said.append(float(session.run([train, loss], {x: a, y: b})[1]))
    world.current().barrier("look at the files")
    events = [len(glob.glob(f"{tmp}/{folder}/events*")) for folder in ("logs", "monitored")]
    saved = sorted(os.path.basename(path) for path in glob.glob(f"{tmp}/saved/*.index"))
    drafts = glob.glob(f"{tmp}/**/*tempstate*", recursive=True)
    return {"said": said, "events": events[0], "monitored": events[1] > 0, "saved": saved, "drafts": drafts}
