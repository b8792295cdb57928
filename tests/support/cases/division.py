"""Pipelines of which each rank makes its rows of each batch: which rows a step gets, and how many maps a rank calls."""

from __future__ import annotations

import contextlib
import ctypes
import io
import mmap
import os
import tempfile
import time
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from matex_tf.patches.data import batches as fed
from matex_tf.patches.division.own_rows import Divided
from matex_tf.patches.turns import row_memory
from tests.support import leftovers
from tests.support.cases.common import KERAS, by_patches, classifier, compiled, numbers, result_of, table
from tests.support.compare import rows_of_batch

SLICES = tf.data.Dataset.from_tensor_slices
AUTOTUNE = tf.data.AUTOTUNE


class Rows(keras.Model):
    """Keeps the rows that its steps get; does nothing else."""

    def __init__(self):
        super().__init__()
        self.kept = []
        self.compile(loss="mse", jit_compile=False)

    def call(self, x):
        return x

    def train_step(self, data):
        from matex_tf.patches.common import batch_share

        part = batch_share.of_step()
        leaves = [
            one.to_tensor(shape=[None, 20]) if isinstance(one, tf.RaggedTensor) else one
            for one in tf.nest.flatten(data)
        ]
        rows = tf.shape(leaves[0])[0] if part is None else part.rows
        total = rows if part is None else part.total
        tf.numpy_function(self._keep, [rows, total, *leaves], [])
        return {"loss": tf.constant(0.0)}

    test_step = train_step

    def _keep(self, rows, total, *leaves):
        self.kept.append((int(total), [np.array(leaf[:rows]) for leaf in leaves]))


def joined(kept):
    """The batches, put together from the rows of all ranks. In a partitioned step Python gets whole batches."""
    from matex_tf.core import world

    everyone = world.current().allgather(kept, "compare rows")
    batches = []
    for parts in zip(*everyone, strict=True):
        leaves = [rows_of_batch(leaf, parts[0][0]) for leaf in zip(*(part for _, part in parts), strict=True)]
        assert {total for total, _ in parts} == {len(leaves[0])}
        batches.append(leaves)
    return batches


class Worked:
    """Counts the calls of a map, which depends on its arguments alone."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        def note(value):
            self.calls += 1
            return value

        return tf.ensure_shape(tf.numpy_function(note, [x], x.dtype, stateful=False), x.shape)


def records(folder, rows=405, compression=""):
    """TFRecord files of an array and a label each; the label is the row."""
    x, _ = table(rows)
    for part in range(4):
        with tf.io.TFRecordWriter(f"{folder}/{part}.tfrecord", compression) as file:
            for row in range(part, rows, 4):
                features = {
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=x[row])),
                    "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[row])),
                }
                file.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return sorted(f"{folder}/{part}.tfrecord" for part in range(4))


#: Tables, and how they are read.
CSVS = {
    "csv": {"num_parallel_reads": 2},
    "csv of one file": {},
    "csv of some columns": {"select_columns": ["label", "word", "a"], "na_value": "-"},
    "csv of line ends in quotes": {},
    "csv with errors ignored": {"ignore_errors": True, "num_rows_for_inference": 20},
}


def csvs(folder, kind):
    """Two CSV files, of numbers, of words in quotes, and of fields that are missing."""
    random = np.random.RandomState(0)
    words = ["plain", '"in, quotes"', '"of ""two"" quotes"', ""] + ['"of\ntwo lines"'] * ("line ends" in kind)
    for part in range(2):
        with open(f"{folder}/{part}.csv", "w", newline="") as file:
            file.write("a,b,word,label\r\n")
            for row in range(70):
                number = "" if row % 9 == 0 else "-" if row % 11 == 0 and "some" in kind else repr(random.normal())
                number = "1.5.5" if "ignored" in kind and row == 30 else number
                file.write(f"{number},{random.normal():.3e},{words[row % len(words)]},{2 * row + part}\r\n")
    return f"{folder}/*.csv"


def parse(record):
    features = {"x": tf.io.FixedLenFeature([6], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
    parsed = tf.io.parse_single_example(record, features)
    return parsed["x"], parsed["y"]


def pipeline(kind, worked, folder):
    """A pipeline whose maps count their calls."""
    x, y = table()

    def work(x, *rest):
        return (worked(tf.sin(x)), *rest)

    if kind == "records":
        data = tf.data.TFRecordDataset(records(folder)).shuffle(50, seed=3)
        return data.map(parse, num_parallel_calls=AUTOTUNE).map(work).batch(25).prefetch(2)
    if kind == "interleave":
        files = SLICES(records(folder)).interleave(tf.data.TFRecordDataset, cycle_length=2)
        return files.map(parse).map(work).repeat(2).batch(25, drop_remainder=True)
    if kind == "parallel":
        data = SLICES(table(405)).shuffle(101).map(work, num_parallel_calls=3)
        return data.map(lambda x, y: ({"x": x}, y)).batch(25, num_parallel_calls=2)
    if kind == "positions":
        data = tf.data.Dataset.zip((SLICES(x).map(lambda x: work(x)[0]), SLICES(y))).enumerate().skip(3).take(90)
        return data.map(lambda i, xy: (xy[0] + tf.cast(i, tf.float32), xy[1])).repeat(2).batch(12).take(14).prefetch(1)
    if kind == "after filter":
        data = SLICES((x, y)).map(lambda x, y: (x * 2, y)).filter(lambda x, y: y > 0).map(work)
        return data.padded_batch(7, ((9,), ()), padding_values=(1.0, 0))
    if kind == "ragged":
        data = SLICES((x, y)).map(work).map(lambda x, y: (tf.repeat(x, 2)[: y + 1], y))
        return data.ragged_batch(7)
    if kind == "padded":
        data = SLICES((x, y)).map(work).map(lambda x, y: ({"a": tf.repeat(x, 2)[: 4 * y + 1], "b": x[None, :y]}, y))
        data = data.padded_batch(7, padding_values=({"a": -1.0, "b": None}, None)).take(14)
        return data.map(lambda x, y: (x, y, tf.gather([1.0, 2.0, 0.5], y))).prefetch(2)
    if kind == "map of padded":
        data = SLICES((x, y)).map(work).map(lambda x, y: (tf.repeat(x, 2)[: 4 * y + 1], y)).padded_batch(7)
        return data.map(lambda x, y: (x + 1, y))
    if kind == "open shapes":
        data = SLICES(table(405)).map(work).map(lambda x, y: (tf.gather(x, tf.range(0 * y + 4)), y))
        return data.batch(25).map(lambda x, y: (tf.cast(x, tf.float64) * 2, y))
    if kind == "map behind":
        data = SLICES(table(405)).map(work).batch(25)
        data = data.map(lambda x, y: (tf.cast(x, tf.float64) * 2 - [1.0] * 6, y))
        return data.map(lambda x, y: (x, y, tf.gather([1.0, 2.0, 0.5], y)), num_parallel_calls=2).prefetch(2)
    if kind == "few":
        return SLICES((x[:2], y[:2])).map(work).batch(25)
    if kind == "shuffled after":
        return SLICES((x, y)).map(work).shuffle(50, seed=3).batch(25)
    if kind == "shuffled and repeated":  # TensorFlow makes one of the two, and draws other orders
        return SLICES((x, y)).map(work).shuffle(50, seed=3).repeat(2).batch(25)
    if kind == "shuffled, mapped and repeated":
        return SLICES((x, y)).shuffle(50, seed=3).map(work).repeat(2).batch(25)
    if kind == "map across, repeated":
        return SLICES((x, y)).map(work).shuffle(50).repeat(2).batch(25).map(lambda x, y: (x - tf.reduce_mean(x), y))
    if kind == "generator":
        signature = tf.TensorSpec([6], tf.float32), tf.TensorSpec([], tf.int32)
        made = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=signature)
        return made.map(lambda x, y: (x * 2, y)).batch(16)
    if kind == "map across":
        return SLICES((x, y)).map(work).batch(25).map(lambda x, y: (x - tf.reduce_mean(x), y))
    if kind.startswith("random"):

        def draw(x, y):
            return work(x + tf.random.uniform([6], seed=3), y)

        if kind == "random":
            return SLICES((x, y)).map(draw).batch(25)
        return SLICES((x, y)).map(draw).shuffle(50).map(work).repeat(2).batch(25)
    if kind == "python":
        double = worked_twice(worked)
        data = SLICES((x, y)).map(lambda x, y: (tf.numpy_function(double, [x], tf.float32), y))
        return data.map(lambda x, y: (tf.ensure_shape(x, [6]), y), num_parallel_calls=2).batch(25)
    raise ValueError(kind)


def worked_twice(worked):
    """Python that may keep a state."""

    def double(x):
        worked.calls += 1
        return x * 2

    return double


def walked(kind):
    """The rows of each batch of two epochs of `fit` and of `evaluate`, and how many maps this rank called in `fit`."""
    keras.utils.set_random_seed(7)
    worked = Worked()
    with tempfile.TemporaryDirectory() as folder:
        data = pipeline(kind, worked, folder)
        # Left in the middle, a repeat begins as many rounds as TensorFlow reads ahead.
        first = [*data][0] if "repeated" in kind else next(iter(data))
        first = [np.asarray(leaf) for leaf in tf.nest.flatten(first, expand_composites=True)]
        worked.calls = 0
        model = Rows()
        model.fit(data, epochs=2, verbose=0)
        calls = worked.calls
        model.evaluate(data, verbose=0)
    return {"first": first, "batches": joined(list(model.kept)), "calls": calls}


def told(found):
    """What says who does which work, and notes what it says that of."""
    words = Divided.who_does_it
    return lambda divided: found.append(divided) or words(divided)


def table_read(kind):
    """The rows of each batch of two epochs over CSV files, and what was said of who parses them."""
    keras.utils.set_random_seed(7)
    found, model = [], Rows()
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(Divided, "who_does_it", told(found)):
        if kind == "csv of two files":
            csvs(folder, kind)
            files, types = [f"{folder}/0.csv", f"{folder}/1.csv"], [[0.5], tf.float64, [""], tf.int32]
            data = tf.data.experimental.CsvDataset(files, types, header=True)
            data = data.map(lambda a, b, word, label: ({"a": a, "b": b, "word": word}, label))
            data = data.shuffle(60, seed=3).batch(25)
        else:
            files = csvs(folder, kind)
            data = tf.data.experimental.make_csv_dataset(
                f"{folder}/0.csv" if kind == "csv of one file" else files,
                25,
                label_name="label",
                num_epochs=1,
                shuffle_buffer_size=60,
                shuffle_seed=3,
                **CSVS[kind],
            )
        model.fit(data, epochs=2, verbose=0)
    said = [(one.maps, one.kept.replace(folder, "")) for one in found]
    return {"batches": joined(list(model.kept)), "said": said}


def records_read(kind):
    """The rows of each batch of two epochs over TFRecord files, and what was said of who parses them."""
    keras.utils.set_random_seed(7)
    found, model = [], Rows()
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(Divided, "who_does_it", told(found)):
        compression = "GZIP" if kind == "compressed" else ""
        files, options = records(folder, compression=compression), {}
        if kind == "one file":
            files = files[0]
        elif kind == "parallel":
            options["num_parallel_reads"] = 2
        elif kind == "autotuned":
            options["num_parallel_reads"] = AUTOTUNE
        elif kind == "listed":
            files = tf.data.Dataset.list_files(f"{folder}/*.tfrecord", seed=5).repeat(2)
        elif kind == "filtered":
            files = SLICES(files).filter(lambda name: tf.strings.length(name) > 0)
        if kind in ("interleaved", "interleaved in parallel"):
            parallel = {"num_parallel_calls": AUTOTUNE} if "parallel" in kind else {}
            files = tf.data.Dataset.list_files(f"{folder}/*.tfrecord", seed=5)
            several = {"cycle_length": 3, "block_length": 2}
            data = files.interleave(lambda name: tf.data.TFRecordDataset(name), **several, **parallel)
        elif kind == "interleaved parts":
            data = SLICES(files).interleave(lambda name: tf.data.TFRecordDataset(name).take(70), cycle_length=2)
        elif kind == "flat":
            data = SLICES(files).flat_map(tf.data.TFRecordDataset)
        else:
            data = tf.data.TFRecordDataset(files, compression, **options)
        data = data.shuffle(50, seed=3)
        if kind == "enumerated":
            data = data.enumerate().map(lambda number, record: (parse(record)[0] * tf.cast(number, tf.float32), number))
        else:
            data = data.map(parse, num_parallel_calls=AUTOTUNE)
        model.fit(data.batch(25).prefetch(2), epochs=2, verbose=0)
    said = [(one.maps, one.kept.replace(folder, "")) for one in found]
    return {"batches": joined(list(model.kept)), "said": said}


#: Memory that processes share, in which calls are counted where no code that makes batches leads.
_CALLS = mmap.mmap(-1, 4096)


class Augmented(keras.utils.PyDataset):
    """Batches of 25, augmented by numbers that are drawn from each batch's own seed, or from NumPy's state."""

    def __init__(self, kind):
        processes = kind == "processes"
        super().__init__(workers=2 if processes or kind == "workers" else 1, use_multiprocessing=processes)
        self.x, self.y = table()
        self.kind, self.epochs = kind, 0
        self.calls = np.frombuffer(_CALLS, np.int64, 5).ctypes.data
        np.frombuffer(_CALLS, np.int64, 5)[:] = 0

    def __len__(self):
        return 5

    def __getitem__(self, number):
        ctypes.c_int64.from_address(self.calls + 8 * number).value += 1
        if self.kind == "raises" and number == 3:
            raise ValueError("row 80 of the table is torn")
        here = slice(25 * number, 25 * number + 25)
        random = (
            np.random
            if self.kind == "random"
            else np.random.RandomState([number, self.epochs * (self.kind != "steps")])
        )
        return self.x[here] + random.normal(size=self.x[here].shape), {"y": self.y[here], "z": np.arange(3)}

    def on_epoch_end(self):
        self.epochs += 1


def in_turn(kind):
    """The rows of each batch of two epochs of `fit` and of `evaluate`, the batches that this rank made, and those of
    which it has taken its rows from the memory of the node."""
    keras.utils.set_random_seed(7)
    data, model, taken = Augmented(kind), Rows(), []
    take, room = row_memory.RowMemory.take, 0 if kind == "no room" else 1 << 30

    def noted(*args):
        taken.append(args)
        return take(*args)

    with mock.patch.object(row_memory.RowMemory, "take", noted), mock.patch.object(row_memory, "_free", lambda: room):
        if kind == "steps":
            model.fit(data, epochs=8, steps_per_epoch=3, verbose=0)
        else:
            model.fit(data, epochs=4, shuffle=kind not in ("workers", "processes"), verbose=0)
        made = int(np.frombuffer(_CALLS, np.int64, 5).sum())
        model.evaluate(Augmented("index"), verbose=0)
    kept = [(total, rows[:-1]) for total, rows in model.kept]
    whole = kind == "random" or (kind in ("workers", "processes") and KERAS < (3, 4))
    return {"batches": joined(kept), "made": made, "taken": len(taken), "epochs": data.epochs, "whole": whole}


def torn():
    """A batch cannot be made: every rank raises that where one rank does, and what is trained next is as on one."""
    keras.utils.set_random_seed(7)
    model, steps = Rows(), []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    try:
        model.fit(Augmented("raises"), shuffle=False, callbacks=[count], verbose=0)
    except tf.errors.OpError as error:
        kind, said = type(error).__name__, "ValueError: row 80 of the table is torn" in str(error)
    model.fit(Augmented("index"), verbose=0)
    threads = leftovers.threads("matex_tf messenger", "matex_tf input")
    batches = joined([(total, rows[:-1]) for total, rows in model.kept])
    return {"kind": kind, "said": said, "steps": steps, "batches": batches, "threads": threads}


def trained(kind):
    """A training on such a pipeline, with validation and predictions."""
    keras.utils.set_random_seed(7)
    x, y = table()

    def work(x, y):
        return tf.sin(x), y

    data = SLICES((x, y)).shuffle(101).map(work).batch(25)
    if kind == "steps":
        data = data.repeat()
    plain = SLICES((x, y)).map(work).batch(25)
    model = compiled(classifier())
    options = {"class": {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}}, "steps": {"steps_per_epoch": 4}}.get(kind, {})
    history = model.fit(data, epochs=3, validation_data=plain, verbose=0, **options)
    result = result_of(model, history)
    result["evaluate"] = numbers(model.evaluate(plain, verbose=0))
    result["predict"] = model.predict(plain.map(lambda x, y: x) if kind == "steps" else plain, verbose=0)
    return result


class Slow(keras.callbacks.Callback):
    """Steps that take longer than their batches."""

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.01)


def fitted_again(kind):
    """The losses of several calls of `fit`, each of which goes on with the orders that the data draw."""
    keras.utils.set_random_seed(7)
    x, y = table()
    x, y = x[:50], y[:50]

    def work(x, y):
        return tf.sin(x), y

    data = {
        "no map": lambda: SLICES((x, y)).shuffle(50).repeat().batch(10),
        "map": lambda: SLICES((x, y)).map(work, 2).shuffle(50).repeat().batch(8).prefetch(AUTOTUNE),
        "batches": lambda: SLICES((x, y)).shuffle(50).map(work, AUTOTUNE).batch(10).repeat().prefetch(AUTOTUNE),
    }[kind]()
    model, steps = compiled(classifier()), [(2, 5), (2, 5), (1, 3), (1, 3), (1, 3), (2, 4)]
    given = [dict(epochs=epochs, steps_per_epoch=count, verbose=0, callbacks=[Slow()]) for epochs, count in steps]
    return [model.fit(data, **one).history["loss"] for one in given]


@by_patches
def looped(kind):
    """Weights after a loop of the script's own, labels that another loop has gathered, and the maps of this rank."""
    keras.utils.set_random_seed(7)
    worked, (x, y) = Worked(), table(405)
    data = SLICES((x, y)).shuffle(101, seed=3).map(lambda x, y: (worked(tf.sin(x)), y), num_parallel_calls=2).batch(25)
    if kind == "counted":
        data = data.skip(1).take(12).repeat(2).prefetch(1)
    if kind in ("iterator", "saved", "iterator in graph"):
        data = data.repeat()
    labels = [] if data.cardinality() < 0 else [label for _, batch in data for label in batch.numpy().tolist()]
    worked.calls = 0
    model, optimizer = classifier(), keras.optimizers.SGD(0.1)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    if kind == "in graph":

        @tf.function
        def train():
            for x, y in data:
                step(x, y)

        for _ in range(3):
            train()
    elif kind == "iterator in graph":
        iterator = iter(data)

        @tf.function
        def train(iterator):
            for _ in tf.range(10):
                step(*next(iterator))

        for _ in range(5):
            train(iterator)
    elif kind in ("iterator", "saved"):
        iterator, compiled_step = iter(data), tf.function(step)
        saved = kind == "saved" and tf.train.Checkpoint(iterator=iterator)
        for number in range(50):
            compiled_step(*next(iterator))
            if saved and number == 20:
                with tempfile.TemporaryDirectory() as folder:
                    saved.restore(saved.save(f"{folder}/state"))
    else:
        compiled_step = tf.function(step)
        for _ in range(3):
            for x, y in data:
                compiled_step(x, y)
    return {"weights": [np.array(one) for one in model.weights], "labels": labels, "calls": worked.calls}


def differing():
    """Rows of two shapes in one batch, of which each rank has those of one shape."""
    data = SLICES(tf.range(24)).map(lambda row: (tf.zeros([tf.where(row < 12, 3, 4)]), row)).batch(24)
    Rows().fit(data, verbose=0)


def waiting(kind):
    """What is said of an epoch in which any wait for input is much."""
    lines = io.StringIO()
    much = mock.patch.multiple(fed, _MUCH=0.0, _MUCH_SECONDS=0.0)
    with tempfile.TemporaryDirectory() as folder, much, contextlib.redirect_stderr(lines):
        Rows().fit(pipeline(kind, Worked(), folder), verbose=0)
    return "".join(line for line in lines.getvalue().splitlines() if line.startswith("matex_tf:"))


def generated(kind):
    """The rows of each batch of a generator whose inputs, and number of batches, are others on each rank."""
    from matex_tf.core import world

    keras.utils.set_random_seed(7)
    rank, (x, y), model = world.current().rank, table(), Rows()

    def generate():
        for number in range(5 - rank):
            here = slice(20 * number, 20 * number + 20)
            yield x[here] + rank / 8, y[here]

    if kind == "fit":
        model.fit(generate(), verbose=0)
        model.evaluate(generate(), verbose=0)
    else:
        signature = tf.TensorSpec([None, 6], tf.float32), tf.TensorSpec([None], tf.int32)
        data = tf.data.Dataset.from_generator(generate, output_signature=signature)
        model.fit(data.map(lambda x, y: (x * 2, y)).prefetch(2), epochs=2, verbose=0)
    return {"batches": joined(list(model.kept))}


def waiting_loop(kind):
    """What is said of a loop in which any wait for input is much."""
    lines, weight, optimizer = io.StringIO(), tf.Variable(1.0), keras.optimizers.SGD(0.1)
    much = mock.patch.multiple(fed, _MUCH=0.0, _MUCH_SECONDS=0.0)
    with tempfile.TemporaryDirectory() as folder, much, contextlib.redirect_stderr(lines):
        for x, _ in pipeline(kind, Worked(), folder):
            with tf.GradientTape() as tape:
                loss = weight * tf.reduce_mean(x)
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
    return "".join(line for line in lines.getvalue().splitlines() if line.startswith("matex_tf:"))


def own_files():
    """Files of the same names that hold other rows on each rank: together they are the batch."""
    from matex_tf.core import world

    keras.utils.set_random_seed(7)
    ranks = world.current()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.tfrecord")
        with tf.io.TFRecordWriter(path) as file:
            for row in range(ranks.rank, 12, ranks.size):
                file.write(str(row))
        data = tf.data.TFRecordDataset([path]).map(lambda row: (tf.strings.to_number(row)[None], 1))
        model = Rows()
        model.fit(data.batch(12 // ranks.size // 2), epochs=2, verbose=0)
    return [sorted(np.concatenate([leaf.ravel() for leaf in batch[:1]])) for batch in joined(list(model.kept))]
