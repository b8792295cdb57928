"""`adapt` of layers: where each rank has rows of its own, it learns from those of all ranks.

Of arrays the ranks compare what they hold, as `fit` does. Of a tf.data pipeline of own rows each batch is joined from
those of the ranks. What Keras walks over otherwise, such as a generator, is a rank's own; if it differs, `fit` says so.

Relies on: `adapt` of the layers in `ADAPTING`, whose first argument is the data (public); that it walks over a
`tf.data.Dataset` by `__iter__`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.patches.common import wrapping
from matex_tf.patches.data import array_sharding
from matex_tf.patches.sources import pipeline_ownership, source_sharding
from matex_tf.readers import of_all_ranks, own_rows

#: Layers that learn from a whole data set, by module.
ADAPTING = {
    "keras.src.layers.preprocessing.normalization": "Normalization",
    "keras.src.layers.preprocessing.discretization": "Discretization",
    "keras.src.layers.preprocessing.index_lookup": "IndexLookup",
    "keras.src.layers.preprocessing.text_vectorization": "TextVectorization",
    "tf_keras.src.engine.base_preprocessing_layer": "PreprocessingLayer",
}


def install(module: ModuleType) -> None:
    """Patch a module of `ADAPTING`."""
    name = next(one for place, one in ADAPTING.items() if module.__name__.endswith(place.partition(".")[2]))
    wrapping.wrap(module, f"{name}.adapt", _adapt)


def _adapt(wrapped: Any, layer: Any, args: Any, kwargs: Any) -> Any:
    given = inspect.signature(wrapped).bind(*args, **kwargs)
    name, data = next(iter(given.arguments.items()))
    world.current().at(f"adapt of {layer.name}")
    if isinstance(data, tf.data.Dataset):
        if not _is_own(data):
            return wrapped(*args, **kwargs)
        if "keras2" in type(layer).__module__ or "tf_keras" in type(layer).__module__:
            raise MatexError(
                f"{layer.name}.adapt() would see this rank's rows only, as Keras 2 iterates over a tf.data pipeline by "
                "itself: adapt it to arrays, such as the data of a DataSet."
            )
        if given.arguments.get("steps") is not None:
            data = data.take(given.arguments.pop("steps"))
        if type(layer).__name__ == "Normalization" and data.element_spec is not None and _rank(data) == 1:
            data = data.batch(128)  # as Keras would, of what it gets
        given.arguments[name] = _joined(data)
    else:
        given.arguments[name] = _of_all(data, by_numpy=type(layer).__name__ == "Normalization")
    return wrapped(*given.args, **given.kwargs)


def _is_own(data: Any) -> bool:
    """Whether each rank's pipeline has rows of its own."""
    return bool(source_sharding.found(data)) or (pipeline_ownership.look(data).source is pipeline_ownership.Source.OWN)


def _rank(data: Any) -> int | None:
    spec = tf.nest.flatten(data.element_spec)[0]
    return spec.shape.rank if hasattr(spec, "shape") else None


def _of_all(data: Any, by_numpy: bool) -> Any:
    """The rows of all ranks, of an array or of several; the data themselves where every rank has the same.

    Args:
        by_numpy: whether Keras computes statistics of arrays by NumPy, which knows those of all ranks.
    """
    if isinstance(data, (list, tuple)):
        if not data or not isinstance(data[0], (str, bytes)):
            return type(data)(_of_all(one, by_numpy) for one in data) if type(data) in (list, tuple) else data
        data = np.asarray(data)
    if not isinstance(data, (np.ndarray, tf.Tensor)) or not len(data.shape):
        return data
    if not isinstance(data, own_rows.OwnRows) and not array_sharding.compare([data]).sharded:
        return data
    rows = np.asarray(data)
    return own_rows.own(rows) if by_numpy else of_all_ranks.whole(rows, "adapt a layer to the rows of all ranks")


def _joined(data: Any) -> Any:
    """A pipeline that, walked over, gives the batches of all ranks, joined."""

    class Joined(type(data)):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            mine = super().__iter__()
            while True:
                batch = next(mine, None)
                leaves = None if batch is None else list(map(_array, tf.nest.flatten(batch)))
                everyone = of_all_ranks.everyone(leaves, "adapt a layer to the batches of all ranks")
                held = [one for one in everyone if one is not None]
                if not held:
                    return
                if any(leaf.ndim == 0 for leaf in held[0]):
                    joined: Any = held
                else:
                    joined = [[np.concatenate(parts) for parts in zip(*held, strict=True)]]
                for one in joined:
                    yield tf.nest.pack_sequence_as(self.element_spec, list(map(tf.constant, one)))

    found: Any = Joined.__new__(Joined)
    found.__dict__.update(data.__dict__)
    return found


def _array(leaf: Any) -> np.ndarray:
    if not isinstance(leaf, tf.Tensor):
        raise MatexError("adapt: each rank has rows of its own, and they are sparse or ragged: make them dense.")
    return np.asarray(leaf.numpy())
