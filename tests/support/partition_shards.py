"""Training steps of Keras on ranks that are threads, with slots of the optimizer in parts, whole, and on one rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from matex_tf.patches.partition import shards
from tests.support.partition import Ranks, cut

RANKS, FEATURES, CLASSES = 2, 16, 8
SIZES = (23, 14, 1, 7)


class ThreadSlots:
    """The slots of a rank that is a thread. See `matex_tf.patches.partition.shards.Slots`.

    Attributes:
        own: the variable of the rank's part, by the place among the optimizer's variables.
    """

    def __init__(self, model: Any, rank: int, weights: bool):
        shapes = {tuple(weight.shape) for weight in model.trainable_variables}
        slots = [one for one in model.optimizer.variables if tuple(one.shape) in shapes]
        self.variables = slots + [one for one in model.variables if weights and len(one.shape) > 1]
        self._places = {
            id(one._value.handle): place
            for place, one in enumerate(self.variables)
            if int(np.prod(one.shape)) >= RANKS * shards.UNIT
        }
        self._rank = rank
        self.own: dict[int, Any] = {}

    def part_of(self, handle: Any, fits: bool, in_loop: bool) -> Any:
        place = self._places.get(id(handle))
        if place is None or not fits:
            return None
        if place not in self.own:
            whole = self.variables[place].value
            self.own[place] = tf.Variable(shards.part(whole, self._rank, RANKS).numpy())
        return self.own[place].handle


@dataclasses.dataclass
class Result:
    """What a step with slots in parts comes to.

    Attributes:
        bits: the largest difference from the same ranks with whole slots.
        one: that from one rank.
        in_parts: the number of slots in parts.
        exchanges: in the graph of a step; before: with whole slots.
        largest: elements of the largest value in parts that a step gathers.
    """

    bits: float
    one: float
    in_parts: int
    exchanges: int
    before: int
    largest: int


def dense() -> list[Any]:
    return [keras.layers.Dense(24, activation="tanh"), keras.layers.Dense(CLASSES)]


def attention() -> list[Any]:
    """A block of a transformer, with a frozen layer, one that is used twice, and moving statistics."""
    twice = keras.layers.Dense(FEATURES, activation="gelu")
    frozen = keras.layers.Dense(FEATURES, trainable=False)
    query = keras.layers.Reshape((2, FEATURES // 2))

    def block(x: Any) -> Any:
        x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(2, 8)(x, x))
        return x + keras.layers.EinsumDense("abc,cd->abd", (None, FEATURES // 2))(x)

    x = inputs = keras.Input((FEATURES,))
    x = keras.layers.Flatten()(block(query(twice(twice(frozen(x))))))
    x = keras.layers.BatchNormalization()(keras.layers.Dense(32, use_bias=False)(x))
    return [keras.Model(inputs, keras.layers.Dense(CLASSES)(x))]


def words() -> list[Any]:
    """A table that is looked up, and rows and columns of it; a filter."""
    body = [keras.layers.Embedding(64, 8), keras.layers.Conv1D(16, 3, activation="relu"), keras.layers.Flatten()]
    return [keras.layers.Rescaling(50.0), *body, keras.layers.Dense(CLASSES, dtype="mixed_float16")]


def tables() -> list[Any]:
    """Large tables: rows of one lie on two ranks, and the same rows are looked up several times."""

    def block(x: Any) -> Any:
        one = keras.layers.Embedding(9001, 8)(x)
        two = keras.layers.Embedding(4999, 3)(x % 11)
        return keras.layers.Concatenate()([keras.layers.GlobalAveragePooling1D()(y) for y in (one, two)])

    x = inputs = keras.Input((FEATURES,))
    x = block(keras.ops.cast(x * 4999, "int32"))
    return [keras.Model(inputs, keras.layers.Dense(CLASSES)(x))]


class Dropping(keras.Sequential):
    """Adds rows to the gradient of its first weight, and drops those whose index is negative."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        first, *rest = tape.gradient(loss, self.trainable_variables)
        rows = tf.reshape(tf.range(5.0 * first.shape[1]), [5, -1]) / 100
        first += tf.math.unsorted_segment_sum(rows, tf.constant([3, -1, 15, -7, 3]), first.shape[0])
        self.optimizer.apply([first, *rest], self.trainable_variables)
        return {"loss": loss}


def compare(
    make: Callable[[], Any],
    layers: Callable[[], list[Any]] = dense,
    kind: Any = keras.Sequential,
    weights: bool = False,
    sizes: Sequence[int] = SIZES,
) -> Result:
    """Args: make: an optimizer; layers: of the model; kind: its class; weights: whether they lie in parts too; sizes:
    rows of the batches."""
    specs = [tf.TensorSpec([None, FEATURES]), tf.TensorSpec([None], tf.int32)]

    def built() -> tuple[Any, Any]:
        keras.utils.set_random_seed(5)
        model = kind([keras.Input((FEATURES,)), *layers()])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(make(), loss, jit_compile=False)
        model.optimizer.build(model.trainable_variables)
        model._symbolic_build(data_batch=(np.zeros((2, FEATURES), "f4"), np.zeros(2, "i4")))
        traced = tf.function(lambda *batch: model.train_step(batch)).get_concrete_function(*specs)
        return model, traced

    one, single = built()
    parts = [built() for _ in range(RANKS)]
    slots = [ThreadSlots(model, rank, weights) for rank, (model, _) in enumerate(parts)]
    sync = Ranks(RANKS, lambda rank: single, [True, True])
    several = Ranks(RANKS, lambda rank: parts[rank][1], [True, True], slots=slots)
    generator = np.random.RandomState(0)
    for size in sizes:
        batch = [tf.constant(generator.rand(size, FEATURES), tf.float32), tf.constant(generator.randint(0, 8, size))]
        batch[1] = tf.cast(batch[1], tf.int32)
        bounds = cut(size, RANKS, generator)
        single(*batch)
        sync(batch, bounds)
        several(batch, bounds)
    for rank in range(RANKS):
        for place in slots[rank].own:
            whole_slot = np.concatenate([other.own[place].numpy() for other in slots])
            slots[rank].variables[place].assign(whole_slot.reshape(slots[rank].variables[place].shape))
    whole = [sync.numpy(variable, 0) for variable in _variables(one)]
    return Result(
        max(_far(model, whole) for model, _ in parts),
        max(_far(model, _variables(one)) for model, _ in parts),
        len(slots[0].own),
        several.exchanges[0].calls,
        sync.exchanges[0].calls,
        several.exchanges[0].largest,
    )


def _variables(model: Any) -> list[Any]:
    return [*model.variables, *model.optimizer.variables]


def _far(model: Any, values: Sequence[Any]) -> float:
    pairs = ((np.asarray(a, "f8"), np.asarray(b, "f8")) for a, b in zip(_variables(model), values, strict=True))
    return max(float(np.abs(np.where(np.isnan(a) & np.isnan(b), 0, a - b)).max(initial=0)) for a, b in pairs)
