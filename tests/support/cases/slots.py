"""Trainings with the slots of the optimizer in parts on the ranks (`--shard state`)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import weakref

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from matex_tf import settings
from matex_tf.core import world
from matex_tf.errors import MatexError, RanksDisagree
from matex_tf.patches.common import log_once
from matex_tf.patches.recovery import snapshot
from matex_tf.patches.shards import serving
from matex_tf.patches.shards import variable as in_parts
from matex_tf.state import run_state
from matex_tf.storage import plain_encoder
from tests.support.cases import pipe

ROWS, BATCH, FEATURES = 70, 23, 200


@contextlib.contextmanager
def sharded(shard="state"):
    """The lines that are said inside, with slots in parts."""
    before, lines, log = settings.use(dataclasses.replace(settings.current(), shard=shard)), [], log_once.log
    log_once.log = lines.append
    run_state.current().part(serving.Parts).every.clear()  # ranks of the pool that no case of other sizes had number so
    try:
        yield lines
    finally:
        log_once.log = log
        settings.use(before)


class Own(keras.Model):
    """A `train_step` of its own: two updates, of gradients that it clips by itself."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layers.Dense(32, activation="tanh"), layers.Dense(4)

    def call(self, x):
        return self.second(self.first(x))

    def train_step(self, data):
        x, y = data[:2]
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_variables), 0.5)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss, "norm": norm}


class Body(keras.Model):
    """A model whose `build` makes no weights: its layers are built in the first step."""

    def __init__(self):
        super().__init__()
        self.hidden, self.last = layers.Dense(32, activation="tanh"), layers.Dense(4)

    def call(self, x):
        return self.last(self.hidden(x))


class Signs(keras.optimizers.Optimizer):
    """An optimizer of one's own: a mean of signs, and a number for each row of a weight. What it assigns as it is built
    is lost if it is built in the first trace of a step, as Keras' `ScheduleFreeAdamW` is too."""

    def build(self, variables):
        super().build(variables)
        self.means = [self.add_variable_from_reference(one, "mean") for one in variables]
        self.rows = [self.add_variable(one.shape[:1], "zeros", name="rows") for one in variables]
        for mean, variable in zip(self.means, variables, strict=True):
            self.assign(mean, keras.ops.copy(variable))

    def update_step(self, gradient, variable, learning_rate):
        place = self._get_variable_index(variable)
        mean, rows = self.means[place], self.rows[place]
        self.assign(mean, 0.9 * mean + 0.1 * keras.ops.sign(gradient))
        axes = tuple(range(1, len(gradient.shape)))
        self.assign_add(rows, keras.ops.mean(keras.ops.abs(gradient), axis=axes) if axes else keras.ops.abs(gradient))
        scale = keras.ops.reshape(rows, (-1, *[1] * len(axes)))
        self.assign_sub(variable, learning_rate * mean / (1.0 + scale))


def _model(form):
    if form == "own step":
        model = Own()
        model(np.zeros((1, FEATURES), "float32"))
    elif form == "subclass":
        model = Body()
        model.build((None, FEATURES))
    elif form == "embedding" or form.startswith("table"):
        body = [
            layers.Embedding(50 if form == "embedding" else 60001, 8),
            layers.GlobalAveragePooling1D(),
            layers.Dense(32),
            layers.Dense(4),
        ]
        model = keras.Sequential([keras.Input((FEATURES,)), *body])
    else:
        normal = form == "accumulated"  # a bias before it has a gradient of 0, and Adam amplifies its rounding
        body = [layers.Dense(32, use_bias=False), layers.BatchNormalization()] if normal else [layers.Dense(32)]
        model = keras.Sequential(
            [keras.Input((FEATURES,)), *body, layers.Activation("tanh"), layers.Dropout(0.2), layers.Dense(4)]
        )
    optimizer = {
        "accumulated": lambda: keras.optimizers.AdamW(0.01, gradient_accumulation_steps=2, global_clipnorm=1.0),
        "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01, use_ema=True)),
        "own optimizer": lambda: Signs(0.01),
        "embedding": lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.1),
        "table adagrad": lambda: keras.optimizers.Adagrad(0.1),
        "table rmsprop": lambda: keras.optimizers.RMSprop(0.01),
    }.get(form, lambda: keras.optimizers.Adam(0.01))()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=None if form == "own step" else ["accuracy"])
    return model


def _data(form):
    random = np.random.RandomState(0)
    each = {"embedding": 1, "table": 1200}.get(form.split()[0])
    x = each * random.randint(0, 50, (ROWS, FEATURES)) if each else random.rand(ROWS, FEATURES)
    return x.astype("float32"), random.randint(0, 4, ROWS)


def _state(model):
    return [np.asarray(one) for one in [*model.weights, *model.optimizer.variables]]


def _large(model, weights=False):
    """The slots of which each rank holds a part, or the weights: their bytes in the memory of this rank, and whole."""
    among = model.weights if weights else model.optimizer.variables
    slots = [one for one in among if (part := in_parts.of(one)) is not None and part.is_split]
    return sum(map(in_parts.bytes_held, slots)), sum(np.asarray(one).nbytes for one in slots)


def trained(form, shard="state", hosts=""):
    """What two fits with an evaluation between them leave, with what is read of the optimizer on the way."""
    with sharded(shard) as lines, pipe.chosen(hosts):
        keras.utils.set_random_seed(1)
        model, (x, y) = _model(form), _data(form)
        history = [model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0).history]
        held = _large(model)
        between = _state(model)
        logs = {} if form == "own step" else model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
        model.optimizer.variables[2].assign(0.5 * model.optimizer.variables[2])  # by the script, in parts
        history.append(model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0).history)
        model.train_on_batch(x[:7], y[:7])
        return {"history": history, "between": between, "logs": logs, "state": _state(model)}, held, lines


def with_weights(form):
    """What a fit leaves on ranks that hold weights in parts and on such that hold them whole, with all that reads these
    on the way; the bytes of weights in parts on this rank, and whole; lines."""
    found, held = {}, (0, 0)
    for shard in ("none", "weights"):
        with sharded(shard) as lines:
            keras.utils.set_random_seed(1)
            model, (x, y) = _model(form), _data(form)
            model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
            logs = {} if form == "own step" else model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
            predicted = model.predict(x, batch_size=BATCH, verbose=0)
            held = _large(model, weights=True)
            model.set_weights([0.5 * one for one in model.get_weights()])
            model.train_on_batch(x[:7], y[:7])
            found[shard] = {"logs": logs, "predicted": predicted, "state": _state(model)}
            found[shard]["called"] = np.asarray(model(x[:3]))
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x[:3]) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            found[shard]["gradients"] = [np.asarray(tf.convert_to_tensor(one)) for one in gradients]
    return found, held, lines


def saved(directory, shard="state"):
    """A model saved in the middle, loaded, and trained on; and one that was not saved."""
    with sharded(shard):
        keras.utils.set_random_seed(1)
        model, (x, y) = _model("plain"), _data("plain")
        path = os.path.join(directory, f"{shard}_of_{world.current().size}")
        callbacks = [keras.callbacks.ModelCheckpoint(path + ".epoch.keras"), keras.callbacks.BackupAndRestore(path)]
        model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, callbacks=callbacks)
        model.save(path + ".keras")
        model.save_weights(path + ".weights.h5")
        split = _large(model)[0] > 0 or world.current().is_single
        found = []
        if shard == "weights":
            model.export(path + ".exported")
            exported = tf.saved_model.load(path + ".exported")
            found.append(np.asarray(exported.serve(x[:5])))
        for name in (".keras", ".epoch.keras"):
            loaded = keras.models.load_model(path + name)
            found.append(_state(loaded))
            loaded.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)
            found.append(_state(loaded))
        model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)
        found.append(_state(model))
        model.load_weights(path + ".weights.h5")
        kept = found[-5][-len(model.optimizer.variables) :]
        model.optimizer.load_own_variables({str(place): value for place, value in enumerate(kept)})
        found.append(_state(model))
        return found, split


@contextlib.contextmanager
def counting():
    """The most bytes of values that are whole at once, of those that are gathered inside."""
    alive, most, gathered = {}, [0], in_parts.Part._gathered

    def noted(part):
        value = gathered(part)
        owner = value if value.base is None else value.base
        alive[id(owner)] = owner.nbytes
        weakref.finalize(owner, alive.pop, id(owner))
        most[0] = max(most[0], sum(alive.values()))
        return value

    in_parts.Part._gathered = noted
    try:
        yield most
    finally:
        in_parts.Part._gathered = gathered


def whole_at_once(directory):
    """By what writes a model: the most bytes of gathered values at once; bytes of all in parts, and of the largest."""
    with sharded("weights"):
        keras.utils.set_random_seed(1)
        model, (x, y) = _model("plain"), _data("plain")
        model.fit(x, y, batch_size=BATCH, verbose=0)
        every = [*model.weights, *model.optimizer.variables]
        split = [part for part in map(in_parts.of, every) if part is not None and part.is_split]
        sizes = [int(np.prod(part.shape)) * part.dtype.size for part in split]
        path, found = os.path.join(directory, f"whole_of_{world.current().size}"), {}
        for name, write in {
            ".keras": lambda: model.save(path + ".keras"),
            "save_weights": lambda: model.save_weights(path + ".weights.h5"),
            "checkpoint": lambda: snapshot.take(model, [], python_draws=False),
        }.items():
            with counting() as most:
                kept = write()
            del kept
            found[name] = most[0]
        return found, sum(sizes), max(sizes), all(part.is_split for part in split)


def misnumbered(directory):
    """What saving says where rank 1 numbers variables in parts otherwise, or lacks them; the weights in a file that is
    saved afterwards differ by so much."""
    with sharded("weights"):
        model, (x, y) = _model("plain"), _data("plain")
        model.fit(x, y, batch_size=BATCH, verbose=0)
        every, path, said = run_state.current().part(serving.Parts).every, os.path.join(directory, "a.weights.h5"), []
        right = list(every)
        for wrong in (right[::-1], []):
            every[:] = wrong if world.current().rank == 1 else right
            try:
                model.save_weights(path)
            except RanksDisagree as error:
                said.append(str(error))
        every[:] = right
        model.save_weights(path)
        weights = model.get_weights()
        model.load_weights(path)
        return said, max(float(np.abs(a - b).max()) for a, b in zip(weights, model.get_weights(), strict=True))


def handed_on(path):
    """The state that ranks keep in a file, or take from it if it is there, before and after an epoch; those that take
    it have weights of their own before."""
    with sharded("weights"):
        keras.utils.set_random_seed(1)
        model, (x, y) = _model("plain"), _data("plain")
        ranks, writes = world.current(), not os.path.exists(path)
        if not writes:
            model.set_weights([0.5 * one for one in model.get_weights()])
        model.fit(x, y, batch_size=BATCH, verbose=0)
        if writes:
            taken = snapshot.take(model, [], python_draws=False)
            content = plain_encoder.dumps(snapshot.settled(taken)) if taken else b""
            ranks.barrier("look for the file")
            if ranks.rank == 0:
                with open(path, "wb") as file:
                    file.write(content)
        else:
            with open(path, "rb") as file:
                kept = plain_encoder.loads(file.read())
            assert not snapshot.fits(model, kept)
            snapshot.give_back(model, [], kept)
        found = [_state(model)]
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
        return [*found, _state(model)]


def kept():
    """What an epoch gives, and what it gives again after the model has got back what a checkpoint kept."""
    with sharded("weights"):
        keras.utils.set_random_seed(1)
        model, (x, y) = _model("plain"), _data("plain")
        model.fit(x, y, batch_size=BATCH, verbose=0)
        snapshot_of = snapshot.take(model, [], python_draws=False)
        snapshot_of = world.current().broadcast(snapshot_of and snapshot.settled(snapshot_of), "share what was kept")
        found = []
        for _ in range(2):
            model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
            found.append(_state(model))
            split = _large(model)[0] > 0 and _large(model, weights=True)[0] > 0
            snapshot.give_back(model, [], snapshot_of)
        return found, split


def refused():
    """The errors of models whose steps are not rebuilt for rows."""
    said = []
    with sharded():
        for options in ({"run_eagerly": True}, {"jit_compile": True}):
            model, (x, y) = _model("plain"), _data("plain")
            model.compile("adam", "sparse_categorical_crossentropy", **options)
            try:
                model.fit(x, y, batch_size=BATCH, verbose=0)
            except MatexError as error:
                said.append(str(error))
    return said


def read_by_a_function():
    """What becomes of a compiled function of the script's own that changes a slot, and of one rank that assigns it."""
    with sharded():
        keras.utils.set_random_seed(1)
        model, (x, y) = _model("plain"), _data("plain")
        model.fit(x, y, batch_size=BATCH, verbose=0)
        slot = model.optimizer.variables[2]
        said = []
        for function in (lambda: slot.assign(2 * slot), lambda: slot + 1.0):
            try:
                tf.function(function)()
            except MatexError as error:
                said.append(str(error))
        if world.current().rank == 1:
            slot.assign(np.ones(slot.shape))
        try:
            model.fit(x, y, batch_size=BATCH, verbose=0)
        except RanksDisagree as error:
            said.append(str(error))
        return said
