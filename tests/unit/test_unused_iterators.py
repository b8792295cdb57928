"""Iterators that Keras makes and nobody uses: what they would have drawn is drawn all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from matex_tf.patches.fit.epochs import unused_iterators


def _rows(seed: int = 3) -> Any:
    return tf.data.Dataset.range(20).shuffle(20, seed=seed)


def _more(row: tf.Tensor) -> tf.Tensor:
    return row + 100


def _random() -> Any:
    return tf.data.Dataset.random(seed=2, rerandomize_each_iteration=True)


PIPELINES: dict[str, Callable[[], Any]] = {
    "maps behind a shuffle": lambda: _rows().map(_more).batch(4).map(_more).prefetch(2),
    "a map before it": lambda: tf.data.Dataset.range(20).map(_more).shuffle(20, seed=3).batch(4),
    "a shuffle repeated": lambda: _rows().repeat(2).map(_more).batch(4),
    "two shuffles": lambda: _rows().map(_more).shuffle(5, seed=4).batch(4),
    "zipped": lambda: tf.data.Dataset.zip((_rows(), _rows(5).map(_more))).batch(4),
    "sampled": lambda: tf.data.Dataset.sample_from_datasets([_rows(), _rows(7)], seed=1).batch(4),
    "in an interleave": lambda: tf.data.Dataset.range(4).interleave(lambda one: _rows().map(_more)).batch(4),
    "random numbers": lambda: _random().take(8).map(lambda row: row // 2),
    "the same order": lambda: tf.data.Dataset.range(20).shuffle(20, seed=3, reshuffle_each_iteration=False).batch(4),
    "cached": lambda: _rows().map(_more).cache().batch(4),
    "no order": lambda: tf.data.Dataset.from_tensor_slices(list(range(20))).map(_more).batch(4),
}


def _epochs(make: Callable[[], Any], unused: Callable[[Any], Any]) -> list[list[Any]]:
    """Three epochs of a pipeline, with what is made of it between two of them."""
    tf.random.set_seed(1)
    dataset, epochs = make(), []
    for _ in range(3):
        epochs.append([row.tolist() for row in tf.nest.flatten(list(dataset.as_numpy_iterator()))])
        unused(dataset)
    return epochs


@pytest.mark.parametrize("name", PIPELINES)
def test_the_next_epoch_has_the_order_that_it_had(name: str) -> None:
    def drawn(dataset: Any) -> None:
        front = unused_iterators.what_draws(dataset)
        if front is not None:
            iter(front)

    assert _epochs(PIPELINES[name], drawn) == _epochs(PIPELINES[name], iter)


def test_what_draws_before_a_full_cache_draws_no_more() -> None:
    """As another walk over it shows, which goes on where the others have left off."""

    def orders(unused: Callable[[Any], Any]) -> list[Any]:
        tf.random.set_seed(1)
        rows = _rows()
        cached = rows.map(_more).cache().batch(4)
        for _ in range(3):
            list(cached)
            unused(cached)
        return list(rows.as_numpy_iterator())

    assert orders(lambda dataset: iter(unused_iterators.what_draws(dataset))) == orders(iter)


def test_maps_are_left_out() -> None:
    dataset = PIPELINES["maps behind a shuffle"]()
    assert "Shuffle" in type(unused_iterators.what_draws(dataset)).__name__
    assert unused_iterators.what_draws(PIPELINES["no order"]()) is None
    # Without what is drawn the epochs would have other orders.
    assert _epochs(PIPELINES["maps behind a shuffle"], lambda _: None) != _epochs(
        PIPELINES["maps behind a shuffle"], iter
    )
