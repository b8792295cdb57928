"""Callbacks, files and stopping."""

from __future__ import annotations

import csv
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

from matex_tf.core import world
from tests.support.cases.common import classifier, compiled, momentum, numbers, result_of, table

_written: list[str] = []


def _audit(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        _written.append(arguments[0])


def watch_writes():
    """From now on, keep the names of files that this process opens for writing; h5py opens them in C."""
    import h5py

    if not hasattr(h5py.File, "watched"):
        sys.addaudithook(_audit)
        opened = h5py.File.__init__

        def init(self, name, mode="r", *args, **kwargs):
            if mode != "r" and isinstance(name, (str, os.PathLike)):
                _written.append(os.fspath(name))
            opened(self, name, mode, *args, **kwargs)

        h5py.File.__init__, h5py.File.watched = init, True
    _written.clear()


def writes(tmp):
    """How many files this rank has opened for writing in a directory."""
    names = [os.path.abspath(name) for name in _written]
    return sum(name.startswith(str(tmp)) for name in names)


def files(tmp):
    """Names of the files below a directory, without those that hold a time or a process id."""
    names = sorted(str(path.relative_to(tmp)) for path in Path(tmp).rglob("*") if path.is_file())
    world.current().barrier("all ranks have looked")
    return [name for name in names if "tfevents" not in name]


def fit(model, callbacks, epochs=6, rows=101, validation=True, **options):
    """A training under callbacks."""
    x, y = table(rows)
    data = {"validation_data": table(38, seed=1)} if validation else {}
    return model.fit(x, y, batch_size=25, epochs=epochs, callbacks=callbacks, verbose=0, **data, **options)


def early_stopping():
    """Stops when the validation loss grows, and takes the best weights back."""
    model = compiled(classifier(), optimizer=momentum(0.5))
    stopping = keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)
    history = fit(model, [stopping], epochs=20)
    return result_of(model, history, stopped=stopping.stopped_epoch, best=stopping.best_epoch)


def plateau():
    """Lowers the learning rate when the loss falls by less than it should."""
    model = compiled(classifier())
    lower = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.3, patience=1, min_delta=0.1)
    return result_of(model, fit(model, [lower]), rate=float(np.array(model.optimizer.learning_rate)))


def scheduler():
    """Another learning rate for each epoch."""
    model = compiled(classifier())
    by_epoch = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * (0.5 if epoch else 1.0))
    return result_of(model, fit(model, [by_epoch], epochs=3))


def not_a_number():
    """One row is not a number, so one rank alone sees it in its loss; all stop after the same batch."""
    x, y = table()
    x[60] = np.nan
    model = compiled(classifier())
    batches = Batches()
    history = model.fit(
        x, y, batch_size=25, epochs=3, shuffle=False, verbose=0,
        callbacks=[keras.callbacks.TerminateOnNaN(), batches],
    )  # fmt: skip
    iterations = int(model.optimizer.iterations.numpy())
    return {"batches": batches.seen, "epochs": len(history.epoch), "iterations": iterations}


class Batches(keras.callbacks.Callback):
    """Keeps which epochs and batches have ended."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_begin(self, epoch, logs=None):
        self.seen.append(["epoch", epoch])

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(["batch", batch])


def stops_on_one_rank(when):
    """A callback of the user's own that sets `stop_training` on the last rank only.

    Args:
        when: "epoch" or "batch".
    """

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if when == "epoch" and epoch == 1 and world.rank() == world.size() - 1:
                self.model.stop_training = True

        def on_train_batch_end(self, batch, logs=None):
            if when == "batch" and batch == 2 and world.rank() == world.size() - 1:
                self.model.stop_training = True

    model = compiled(classifier())
    batches = Batches()
    history = fit(model, [Stop(), batches], epochs=4)
    return result_of(model, history, batches=batches.seen)


def lambdas():
    """LambdaCallback, and the logs that a callback of the user's own sees at the end of an epoch."""
    seen = []
    model = compiled(classifier())
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append([epoch, numbers(logs)]))
    history = fit(model, [callback], epochs=3)
    return result_of(model, history, seen=seen)


def checkpoint(tmp, **options):
    """ModelCheckpoint: which files there are, who wrote them, and what every rank reads from each."""
    watch_writes()
    model = compiled(classifier(), optimizer=momentum(0.4))
    callback = keras.callbacks.ModelCheckpoint(**options)
    history = fit(model, [callback])
    result = result_of(model, history, best=numbers(callback.best) if options.get("save_best_only") else None)
    result["files"] = files(tmp)
    result["read"] = {}
    for name in result["files"]:
        if options.get("save_weights_only"):
            other = classifier(seed=9)
            other.load_weights(name)
        else:
            other = keras.saving.load_model(name)
        result["read"][name] = [np.array(weight) for weight in other.get_weights()]
    return {"result": result, "writes": writes(tmp)}


def backup(tmp, save_freq="epoch"):
    """Training breaks off after two epochs and is started again; the backup is there in between, and gone after."""

    class Break(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyError("the power is gone")

    watch_writes()
    found = []
    for callbacks in ([Break()], []):
        model = compiled(classifier())
        epochs = Batches()
        keep = keras.callbacks.BackupAndRestore("backup", save_freq=save_freq)
        try:
            history = fit(model, [keep, epochs, *callbacks], epochs=4, shuffle=False)
        except KeyError:
            found.append(files(tmp))
    found.append(files(tmp))
    return {"result": result_of(model, history, found=found, epochs=epochs.seen), "writes": writes(tmp)}


def csv_logger(tmp):
    """CSVLogger: one table, a line for each epoch, goes on in a second `fit`."""
    watch_writes()
    model = compiled(classifier())
    fit(model, [keras.callbacks.CSVLogger("log.csv")], epochs=3)
    fit(model, [keras.callbacks.CSVLogger("log.csv", append=True)], epochs=2)
    world.current().barrier("the table is written")
    with open("log.csv") as file:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    return {"result": {"rows": rows, "files": files(tmp)}, "writes": writes(tmp)}


def tensorboard(tmp):
    """TensorBoard: one set of event files, and the scalars in them."""
    import tensorflow as tf

    model = compiled(classifier())
    fit(model, [keras.callbacks.TensorBoard("board", histogram_freq=1, update_freq="epoch")], epochs=2)
    world.current().barrier("the events are written")
    time.sleep(0.2)
    scalars, count = {}, {}
    for folder in ("train", "validation"):
        names = sorted(Path(tmp, "board", folder).glob("events*"))
        count[folder] = len(names)
        for name in names:
            for event in tf.compat.v1.train.summary_iterator(str(name)):
                for value in event.summary.value:
                    if value.tag.startswith(("epoch", "evaluation")) and "learning_rate" not in value.tag:
                        key = f"{folder} {value.tag} {event.step}"
                        scalars.setdefault(key, []).append(float(tf.make_ndarray(value.tensor)))
    world.current().barrier("all ranks have read")
    return {"count": count, "scalars": scalars}


def embeddings(tmp):
    """TensorBoard with embeddings, whose weights it saves every second epoch: those that any rank then finds."""
    watch_writes()
    keras.utils.set_random_seed(3)
    flat = [keras.layers.Embedding(10, 4), keras.layers.Flatten(), keras.layers.BatchNormalization(synchronized=True)]
    model = keras.Sequential([keras.Input((3,)), *flat, keras.layers.Dense(3)])
    x, y = np.arange(303).reshape(101, 3) % 10, np.arange(101) % 3
    board = keras.callbacks.TensorBoard("board", embeddings_freq=2)
    history = compiled(model).fit(x, y, batch_size=25, epochs=3, callbacks=[board], verbose=0)
    last = Path("board", "train", "keras_embedding.ckpt-2.weights.h5")
    found = []
    if last.exists():
        model.load_weights(last)
        found = [np.array(weight) for weight in model.get_weights()]
    result = {"found": found, "names": files(tmp), "trained": result_of(model, history)}
    return {"result": result, "writes": writes(tmp)}


def saving(tmp):
    """Models saved, read again and trained on; every rank sees the file when the call returns."""
    import tensorflow as tf

    watch_writes()
    x, y = table()
    model = compiled(classifier())
    model.fit(x, y, batch_size=25, verbose=0)
    seen, read = [], []
    model.save("whole.keras")
    seen.append(os.path.exists("whole.keras"))
    keras.saving.save_model(model, "again.keras")
    seen.append(os.path.exists("again.keras"))
    model.save_weights("parts.weights.h5")
    seen.append(os.path.exists("parts.weights.h5"))
    if world.rank() == 0:
        os.mkdir("served")
        Path("served", "theirs.txt").touch()
    world.current().restarts = True  # in a job that goes on where a rank dies, too, files of others stay
    model.export("served")
    world.current().restarts = False
    seen += [os.path.exists("served/saved_model.pb"), os.path.exists("served/theirs.txt")]
    for name in ("whole.keras", "again.keras"):
        read.append(keras.saving.load_model(name).predict(x, verbose=0))
    other = classifier(seed=9)
    other.load_weights("parts.weights.h5")
    read.append(other.predict(x, verbose=0))
    served = tf.saved_model.load("served")
    read.append(np.array(served.serve(x)))
    loaded = keras.saving.load_model("whole.keras")
    history = loaded.fit(x, y, batch_size=25, epochs=2, verbose=0)
    names = files(tmp)
    overwritten = os.path.getsize("whole.keras")
    loaded.save("whole.keras")
    last = keras.saving.load_model("whole.keras").get_weights()
    return {
        "result": {"seen": seen, "read": read, "names": names, "trained": result_of(loaded, history),
                   "last": [np.array(weight) for weight in last], "sized": overwritten > 1000},
        "writes": writes(tmp),
    }  # fmt: skip


def orbax(tmp):
    """Checkpoints of Orbax, in a directory of all ranks and in a folder that each rank has made for itself."""
    import plain_orbax

    plain_orbax.install()
    model = compiled(classifier())
    folders = [os.path.join(tmp, "kept"), tempfile.mkdtemp(dir=tmp)]
    kept = keras.callbacks.OrbaxCheckpoint(folders[0], save_freq=2)
    best = keras.callbacks.OrbaxCheckpoint(folders[1], save_best_only=True, monitor="loss")
    fit(model, [kept, best], epochs=3)
    best.on_epoch_end(8, {"loss": world.current().rank - 1.0})  # rank 0's is the least so far
    best.on_epoch_end(9, {"loss": -0.5})  # and so this is none, also for the others
    best.wait_until_finished()
    found = [{step: _read(folder, step) for step in sorted(os.listdir(folder))} for folder in folders]
    world.current().barrier("all ranks have looked")
    return {"found": found, "trained": [np.array(weight) for weight in model.get_weights()]}


def _read(folder, step):
    with np.load(os.path.join(folder, step, "weights.npz")) as arrays:
        return [arrays[name] for name in arrays.files]


def save_fails(tmp):
    """Saving where that is impossible: every rank hears of it."""
    model = compiled(classifier())
    Path("file").touch()
    world.current().barrier("the file is in the way")
    attempts = (
        lambda: model.save("file/model.keras"),
        lambda: model.save("model.png"),
        lambda: keras.utils.get_file("none.txt", f"file://{tmp}/no/such/file", cache_dir=tmp),
    )
    return [_error(attempt) for attempt in attempts]


def _error(attempt):
    try:
        attempt()
    except Exception as error:
        return type(error).__name__
    return "saved"


def no_room(tmp):
    """Saving where a file may not become as large as it has to: what is there before and after, and the errors.

    HDF5 files, on whose closing the library may crash then, have a process of their own in `test_whole`.
    """
    model = compiled(keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)]))
    saver = keras.callbacks.ModelCheckpoint("b.keras")
    saver.set_model(model)
    saves = {"a.keras": model.save, "b.keras": lambda name: saver.on_epoch_end(0, {})}
    for name, save in saves.items():
        save(name)
    before = {name: Path(name).read_bytes() for name in saves}
    world.current().barrier("all have read")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    errors = []
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        for name, save in saves.items():
            try:
                save(name)
            except Exception as error:
                errors.append(type(error).__name__)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    world.current().barrier("all have tried")
    same = {name: Path(name).read_bytes() == content for name, content in before.items()}
    return errors, same, sorted(os.listdir(tmp))


def swap_ema():
    """SwapEMAWeights: validation with averaged weights, training with plain ones."""
    model = compiled(classifier(), optimizer=momentum(0.1, use_ema=True, ema_momentum=0.9))
    history = fit(model, [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)], epochs=3)
    return result_of(model, history)
