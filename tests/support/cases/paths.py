"""Paths that only one rank knows: of temporary folders, of the clock, of random names."""

from __future__ import annotations

import inspect
import os
import tempfile
import uuid
from pathlib import Path

import h5py
import keras
import numpy as np
import tensorflow as tf

from matex_tf.core import world
from tests.support.cases.common import classifier, compiled, table

_Names = dict[str, bool]


def _trained(callbacks, epochs=2):
    x, y = table()
    model = compiled(classifier())
    model.fit(x, y, batch_size=25, epochs=epochs, callbacks=callbacks, verbose=0)
    return model


def _same(path, model):
    """Whether a file of a model has the weights of this one."""
    kept = keras.saving.load_model(path).get_weights()
    return all(np.array_equal(one, other) for one, other in zip(kept, model.get_weights(), strict=True))


def _fits_again(folder):
    """Whether a training that broke off goes on where it was."""
    epochs = []

    class Fails(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            epochs.append(epoch)
            if epochs == [0, 1]:
                raise ValueError

    x, y = table()
    for _ in range(2):
        model = compiled(classifier())
        model.build((None, x.shape[1]))
        try:
            kept = keras.callbacks.BackupAndRestore(os.path.join(folder, "backup"))
            model.fit(x, y, batch_size=25, epochs=3, callbacks=[kept, Fails()], verbose=0)
        except ValueError:
            epochs.append(os.path.exists(os.path.join(folder, "backup", "latest.weights.h5")))
    return [*epochs, os.path.exists(os.path.join(folder, "backup"))]


def folders(tmp):
    """What each rank finds in a temporary folder of its own, of all that Keras and TensorFlow write there."""
    found: _Names = {}
    folder = tempfile.mkdtemp(dir=tmp)
    board = keras.callbacks.TensorBoard(os.path.join(folder, "board"))
    log = keras.callbacks.CSVLogger(os.path.join(folder, "log.csv"))
    kept = keras.callbacks.ModelCheckpoint(os.path.join(folder, "sub", "{epoch}.keras"))
    model = _trained([board, log, kept])
    found["checkpoint"] = _same(os.path.join(folder, "sub", "2.keras"), model)
    found["log"] = len(Path(folder, "log.csv").read_text().splitlines()) == 3
    found["board"] = any("tfevents" in name for name in os.listdir(os.path.join(folder, "board", "train")))
    model.save(os.path.join(folder, "model.keras"))
    found["model"] = _same(os.path.join(folder, "model.keras"), model)
    model.save_weights(os.path.join(folder, "model.weights.h5"))
    model.load_weights(os.path.join(folder, "model.weights.h5"))
    if "max_shard_size" in inspect.signature(model.save_weights).parameters:
        before = model.get_weights()
        model.save_weights(os.path.join(folder, "parts.weights.json"), max_shard_size=3e-7)
        model.set_weights([np.zeros_like(weight) for weight in before])
        model.load_weights(os.path.join(folder, "parts.weights.json"))
        found["parts"] = all(map(np.array_equal, before, model.get_weights()))
    model.export(os.path.join(folder, "served"))
    found["served"] = hasattr(tf.saved_model.load(os.path.join(folder, "served")), "serve")
    prefix = tf.train.Checkpoint(v=tf.Variable(3.0)).write(os.path.join(folder, "variables"))
    found["variables"] = prefix.endswith("/variables") and os.path.exists(os.path.join(folder, "variables.index"))
    read = tf.train.Checkpoint(v=tf.Variable(0.0))
    read.read(os.path.join(folder, "variables"))
    found["read"] = float(read.v) == 3
    backed_up = _fits_again(folder)
    found[f"backup {backed_up}"] = backed_up == [0, 1, True, 1, 2, False]
    _trained([keras.callbacks.CSVLogger(f"{folder}/only.csv")] if world.rank() == 0 else [], epochs=1)
    found["only on rank 0"] = os.path.exists(f"{folder}/only.csv") == (world.rank() == 0)
    os.remove(os.path.join(folder, "model.keras"))
    world.current().barrier("all have removed theirs")
    found["removed"] = not os.path.exists(os.path.join(folder, "model.keras"))
    return found


def changed(tmp):
    """What becomes of files under a path of each rank's own that the script changes in place, small and large."""
    from matex_tf.patches.saving import agreed_paths

    found: _Names = {}
    folder = tempfile.mkdtemp(dir=tmp)
    name = os.path.join(folder, "model.weights.h5")
    model = _trained([], epochs=1)
    model.save_weights(name)
    with h5py.File(name, "r+") as file:  # which locks it
        file.attrs["rank"] = world.rank()
        world.current().barrier("all have it open")
    world.current().barrier("all have changed theirs")
    with h5py.File(name) as file:
        found["its own"] = file.attrs["rank"] == world.rank()
    model.save_weights(name)
    with h5py.File(name, "r+" if world.rank() else "r") as file:
        found["written anew"] = "rank" not in file.attrs
        if world.rank():
            file.attrs["rank"] = world.rank()
    agreed_paths.offer(world.current().broadcast(name, "share a path"))
    with h5py.File(name) as file:
        found["still its own"] = file.attrs.get("rank", 0) == world.rank()
    shared = world.current().broadcast(name, "share a path")
    before, agreed_paths._COPIED = agreed_paths._COPIED, 10
    try:
        model.save_weights(name)
    finally:
        agreed_paths._COPIED = before
    found["large"] = os.path.samefile(name, shared)
    return found


def names(tmp):
    """Files and folders whose names are of this rank alone, where there is none of the rank's own to find them in."""
    found: _Names = {}
    mine = uuid.uuid4()
    kept = keras.callbacks.ModelCheckpoint(f"{mine}/{{epoch}}.keras")  # which makes the folder
    model = _trained([kept, keras.callbacks.CSVLogger(f"{mine}.csv"), keras.callbacks.TensorBoard(f"at {mine}")])
    found["checkpoint"] = _same(f"{mine}/2.keras", model)
    found["log"] = len(Path(f"{mine}.csv").read_text().splitlines()) == 3
    model.save(f"{mine}.keras")
    found["model"] = _same(f"{mine}.keras", model)
    found["path"] = kept.filepath.startswith(str(mine)) == (world.rank() == 0 or world.size() == 1)
    world.current().barrier("all have looked")
    from matex_tf.patches.saving import agreed_paths

    agreed_paths._remove_all()
    world.current().barrier("the job is over")
    return (
        found,
        sorted(name.replace(str(mine), "") for name in os.listdir(tmp) if str(mine) in name),
        len(os.listdir(tmp)),
    )
