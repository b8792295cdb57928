"""A model before the first step of a `fit`: what it holds is the same on every rank."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from matex_tf.core import world
from matex_tf.core.mismatch import checksum, name_ranks
from matex_tf.errors import RanksDisagree
from matex_tf.patches.common import keras_lines, seeds
from matex_tf.patches.keras import weights
from matex_tf.patches.shards import pending
from matex_tf.patches.shards import variable as in_parts
from matex_tf.patches.sources import array_fingerprint


def check(model: Any) -> None:
    """Compare the variables of a model, and what its layers have learnt by `adapt`. All ranks come here.

    Variables that lie in parts were compared before.

    Raises:
        RanksDisagree: a value is another on another rank.
    """
    of_optimizers = {
        id(one) for held in keras_lines.optimizers_of(model) for one in keras_lines.optimizer_variables(held)
    }
    pending.agree(variables := weights.variables_of(model))
    held: list[tuple[str, Callable[[], Any]]] = [
        (keras_lines.path(one), functools.partial(_value, one))
        for one in variables
        if id(one) not in of_optimizers and not seeds.is_generator_state(one) and not in_parts.is_split(one)
    ]
    for layer in model._flatten_layers():
        held += [(f"{layer.name}/{name}", functools.partial(np.asarray, value)) for name, value in _learnt(layer)]
    ranks, what = world.current(), "compare the variables of the model"
    described, sums = [], []
    for name, read in held:  # one value at a time
        value = np.asarray(read())
        described.append(f"{name} {value.dtype} {value.shape}")
        sums.append(checksum(value))
    ranks.barrier(what, described)
    marks = np.array(ranks.allgather(sums, what), np.int64)
    apart = [held[place] for place in np.flatnonzero((marks != marks[:1]).any(axis=0))]
    if not apart:
        return
    everyone = ranks.allgather([array_fingerprint.of(np.asarray(read()), sampled=False) for _, read in apart], what)
    for place, (name, _) in enumerate(apart):
        # What differs by rounding, on another machine, say, is rank 0's from here on.
        first = everyone[0][place]
        others = [rank for rank, own in enumerate(everyone) if not array_fingerprint.alike(first, own[place])]
        if others:
            raise RanksDisagree(
                f"{name} of {model.name} on {name_ranks(others)} differs from rank 0 before the first step: it "
                "was computed from a rank's own rows, drawn without the job's seed, or loaded on some ranks only. Let "
                "every rank compute the same: adapt() of Keras' layers and statistics of shard.data are those of all "
                "ranks, and shard.whole(array) has all rows (docs/data.md, Statistics)."
            )


def _value(variable: Any) -> np.ndarray:
    content = pending.content(variable)
    return np.asarray(variable.numpy()) if content is None else content


def _learnt(layer: Any) -> list[tuple[str, np.ndarray]]:
    """What a layer keeps of `adapt` outside of variables, or was made with."""
    if not hasattr(layer, "adapt"):
        return []
    found = [(name, getattr(layer, name, None)) for name in ("bin_boundaries", "input_mean", "input_variance")]
    if hasattr(layer, "get_vocabulary"):
        found.append(("vocabulary", layer.get_vocabulary()))
    return [(name, np.asarray(value)) for name, value in found if value is not None]
