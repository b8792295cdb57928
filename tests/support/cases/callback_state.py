"""What of callbacks, and of states of `hvd.elastic`, goes into checkpoints, and what is said of the rest."""

from __future__ import annotations

import contextlib
import io
import threading

import keras
import numpy as np
import tensorflow as tf

from matex_tf.patches.recovery import callback_state
from matex_tf.storage import plain_encoder


class Tally(keras.callbacks.Callback):
    """Has attributes of all kinds."""

    def __init__(self, **attributes):
        super().__init__()
        vars(self).update(attributes)


class Seen:
    """An object of the script's own."""


def again():
    """Attributes of callbacks that were taken and given to others of the same kinds."""
    best = [np.arange(3.0), np.ones((2, 2), np.float16)]
    lists = [[1], best]
    stop = keras.callbacks.EarlyStopping(monitor="loss", mode="max")
    stop._set_monitor_op()
    mine = Tally(lists=lists, same=lists, ufunc=np.less, op=keras.ops.greater, tensor=tf.constant([1.5, 2]), job=Seen())
    new = [Tally(job="mine", other=3), keras.callbacks.EarlyStopping(monitor="loss", mode="max")]
    with contextlib.redirect_stderr(io.StringIO()):
        callback_state.give_back(new, callback_state.take([mine, stop]))
    return {
        "one list": new[0].lists is new[0].same and bool((new[0].lists[1][0] == best[0]).all()),
        "functions": (new[0].ufunc is np.less, new[0].op is keras.ops.greater, new[1].monitor_op is keras.ops.greater),
        "a tensor": isinstance(new[0].tensor, tf.Tensor) and new[0].tensor.numpy().tolist() == [1.5, 2],
        "the script's": (new[0].job, new[0].other),
    }


def names():
    """What becomes of names in a checkpoint that stand for no such function."""
    said = []
    for what, name in (("keras.ops", "__builtins__"), ("keras.ops", "no"), ("numpy", "load"), ("os", "system")):
        crafted = plain_encoder.dumps(
            [("Tally", {"op": Seen()})], lambda _, what=what, name=name: plain_encoder.Name(what, name)
        )
        try:
            callback_state.give_back([Tally()], crafted)
        except plain_encoder.Malformed as error:
            said.append(str(error))
    return said


def lost():
    """The lines about attributes that are not kept."""
    mine = Tally(seen=Seen(), held=[1, {"in": Seen()}], lock=threading.Lock(), function=lambda: 1, file=io.StringIO(),
                 model_too=keras.Sequential(), kind=Seen, count=3)  # fmt: skip
    with contextlib.redirect_stderr(io.StringIO()) as said:
        for _ in range(2):
            callback_state.take([mine, keras.callbacks.LambdaCallback(), keras.callbacks.History()])
    return said.getvalue().splitlines()
