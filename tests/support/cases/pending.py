"""Large variables that have no value before ranks have them in parts (`--shard weights`)."""

from __future__ import annotations

import contextlib
import os

import keras
import numpy as np

from matex_tf.core import world
from matex_tf.patches.shards import pending
from matex_tf.patches.shards import variable as in_parts
from tests.support.cases.slots import sharded


@contextlib.contextmanager
def _all_are_large():
    """Inside, small variables are large ones. The shapes of those that are made whole."""
    before, whole, made = pending.LARGE, pending.Pending.whole, []

    def noted(self):
        made.append(self.drawn.shape)
        whole(self)

    pending.LARGE, pending.Pending.whole = 20000, noted
    try:
        yield made
    finally:
        pending.LARGE, pending.Pending.whole = before, whole


def _by_hand(shape, dtype=None):
    return np.random.rand(*shape).astype("float32")


def trained(how="", optimizer="Adam", shard="weights", directory=""):
    """What a fit leaves, where the script has done something with the model before; which variables had no value
    before the fit; which slots and tables lie in parts; those that were made whole."""
    with sharded(shard), _all_are_large() as made:
        keras.utils.set_random_seed(5)
        initializer = _by_hand if how == "by hand" else "uniform"
        body = [keras.layers.Embedding(4001, 6, initializer), keras.layers.Flatten()]
        model = keras.Sequential([keras.Input((4,), dtype="int32"), *body, keras.layers.Dense(1)])
        model.compile(getattr(keras.optimizers, optimizer)(0.05), "mse")
        after = np.asarray(keras.initializers.RandomUniform()((3,)))
        random = np.random.RandomState(0)
        x, y = random.randint(0, 4001, (40, 4)), random.rand(40, 1).astype("float32")
        table = model.weights[0]
        before = {
            "read": lambda: table.numpy(),
            "assigned": lambda: table.assign(0.5 * table),
            "called": lambda: np.asarray(model(x[:3])),
            "predicted": lambda: model.predict(x, batch_size=16, verbose=0),
            "saved": lambda: model.save(os.path.join(directory, f"of_{world.current().size}.keras")),
            "one reads": lambda: table.numpy() if world.current().rank == 0 else table.shape,
            "optimizer": lambda: model.optimizer.build(model.trainable_variables),
        }.get(how, lambda: None)()
        variables = [*model.weights, *model.optimizer.variables]
        waiting = [one.path for one in variables if pending.of(one) is not None]
        history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
        table_like = [one for one in [*model.weights, *model.optimizer.variables] if tuple(one.shape) == (4001, 6)]
        split = [in_parts.is_split(one) for one in table_like]
        made = list(made)
        state = [np.asarray(one) for one in [*model.weights, *model.optimizer.variables]]
        before = before if how in ("read", "called", "predicted") else None
        return {"history": history, "state": state, "after": after, "before": before}, waiting, split, made
