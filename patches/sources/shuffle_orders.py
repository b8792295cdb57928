"""The orders that a `shuffle` draws: every rank draws the same, walk after walk.

A `shuffle` draws another order each time that it begins anew. Stages behind it read ahead in threads of their own. So
if it is repeated, a walk that ends in the middle has drawn as many orders as these threads came to: another number on
another rank, perhaps. The next walk would give each rank its rows of other batches. Before it the ranks compare how
many orders each has drawn, and all go on behind the largest number.

The generator of a `shuffle` is one of ours, with the numbers of TensorFlow's own. What it has drawn is found by drawing
one more and looking that up among those of another generator with the same seeds. The state of an iterator over these
sets it.

Relies on (TensorFlow 2.13 to 2.21): `shuffle_dataset_v3` of tensorflow.python.ops.gen_dataset_ops, by which `shuffle`
is made (private); `tf.raw_ops`, public.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.core import world
from matex_tf.patches.common import wrapping
from matex_tf.patches.sources.pipeline_ownership import inputs_of, unwrapped
from matex_tf.state import notes

#: Numbers of which an order is looked at, and orders among which it is looked for.
_NUMBERS, _MOST = 16, 5_000


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    if not wrapping.has_nothing_to_share():
        wrapping.wrap(importlib.import_module("tensorflow.python.ops.gen_dataset_ops"), "shuffle_dataset_v3", _made)


def _made(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
    seeds = kwargs.get("seed"), kwargs.get("seed2")
    if not tf.executing_eagerly() or not kwargs.get("reshuffle_each_iteration") or None in seeds or not any(seeds):
        return wrapped(*args, **kwargs)
    orders = Orders(*seeds)
    dataset = wrapped(*args, **{**kwargs, "seed_generator": orders.generator})
    notes.put(dataset, orders)
    return dataset


class _Generator:
    """A generator of seeds, and the orders of `_NUMBERS` numbers that they give.

    Attributes:
        generator: its handle.
        drawn: how many were drawn by `draw`.
    """

    def __init__(self, seed: Any, seed2: Any):
        with tf.device("CPU:0"):
            self.generator, self._deleter = tf.raw_ops.AnonymousSeedGenerator(seed=seed, seed2=seed2, reshuffle=True)
        self._seeds = {"seed": seed, "seed2": seed2}
        self._dataset: Any = None
        self.drawn = 0

    def _iterator(self) -> Any:
        with tf.device("CPU:0"):
            if self._dataset is None:
                of_one = {"output_types": [tf.int64], "output_shapes": [[]]}
                count = tf.constant(_NUMBERS, tf.int64)
                one = tf.constant(1, tf.int64)
                numbers = tf.raw_ops.RangeDataset(start=one - one, stop=count, step=one, **of_one)
                shuffled = tf.raw_ops.ShuffleDatasetV3(
                    input_dataset=numbers,
                    buffer_size=count,
                    seed_generator=self.generator,
                    reshuffle_each_iteration=True,
                    **self._seeds,
                    **of_one,
                )
                self._dataset = tf.raw_ops.BatchDatasetV2(
                    input_dataset=shuffled, batch_size=count, drop_remainder=True, **_BATCH
                )
            iterator = tf.raw_ops.AnonymousIteratorV3(**_BATCH)
            tf.raw_ops.MakeIterator(dataset=self._dataset, iterator=iterator)
            return iterator

    def draw(self) -> tuple[bytes, Any]:
        """Draw an order; it, and the state by which `go_on` makes it the last one that was drawn."""
        iterator = self._iterator()
        state = tf.raw_ops.SerializeIterator(resource_handle=iterator, external_state_policy=0)
        (order,) = tf.raw_ops.IteratorGetNext(iterator=iterator, **_BATCH)
        self.drawn += 1
        return order.numpy().tobytes(), state

    def go_on(self, state: Any) -> None:
        """Go on behind the order with this state."""
        tf.raw_ops.DeserializeIterator(resource_handle=self._iterator(), serialized=state)


_BATCH: dict[str, Any] = {"output_types": [tf.int64], "output_shapes": [[_NUMBERS]]}


class Orders(_Generator, notes.Inside):
    """The orders that a `shuffle` of a script draws.

    Attributes:
        walked: whether anybody has begun to walk over what has it.
    """

    def __init__(self, seed: Any, seed2: Any):
        super().__init__(seed, seed2)
        self.walked = False
        self._others = _Generator(seed, seed2)
        self._last: tuple[bytes, Any] | None = None  # that was drawn of the others
        self._before: Any = None  # the state of the one before it

    def count(self) -> int | None:
        """How many orders it has drawn; None if that cannot be found out. Draws one more."""
        order, _ = self.draw()
        for _ in range(2):
            for _ in range(_MOST):
                if self._last is not None and self._last[0] == order:
                    return self._others.drawn - 1
                self._learn()
            self._others, self._last = _Generator(**self._seeds), None  # the script has put back an iterator, perhaps
        return None

    def set(self, count: int) -> None:
        """Have drawn so many orders, at least one, and at least as many as `count` has said."""
        while self._others.drawn < count:
            self._learn()
        assert self._last is not None
        state = self._last[1] if self._others.drawn == count else self._before
        if state is not None:
            self.go_on(state)

    def _learn(self) -> None:
        self._before = None if self._last is None else self._last[1]
        self._last = self._others.draw()


def agree(dataset: Any) -> None:
    """Let every rank have drawn as many orders for a pipeline, before a walk over it begins. All ranks come here."""
    ranks, found = world.current(), list(_repeated(dataset, False))
    known = [one for one in found if one.walked]
    for one in found:
        one.walked = True
    if ranks.is_single or not known:
        return
    everyone = ranks.allgather([one.count() for one in known], "compare how many orders a shuffle has drawn")
    if len({*map(len, everyone)}) > 1:
        return  # their pipelines differ, which is found where batches are compared
    for one, counts in zip(known, zip(*everyone, strict=True), strict=True):
        if None not in counts:
            one.set(max(counts))


def agree_before_walks(iterator: Any) -> None:
    """Let the ranks agree before each walk of an epoch iterator of Keras; with Keras 3.3, before the first one."""
    dataset, get = iterator._distributed_dataset, getattr(iterator, "_get_iterator", None)
    if not any(_repeated(dataset, False)):
        return
    if get is None:
        agree(dataset)
        return

    def begin() -> Any:
        agree(dataset)
        return get()

    iterator._get_iterator = begin


def _repeated(dataset: Any, repeats: bool) -> Iterator[Orders]:
    """What draws for a pipeline, if it may do so more than once in a walk.

    Args:
        repeats: whether what is behind does.
    """
    dataset = unwrapped(dataset)
    orders = notes.found(dataset._variant_tensor, Orders)
    if repeats and orders is not None:
        yield orders
    repeats = repeats or "Repeat" in type(dataset).__name__
    for one in inputs_of(dataset):
        yield from _repeated(one, repeats)
