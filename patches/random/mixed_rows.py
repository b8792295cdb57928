"""What mixes the rows of a batch at random: `MixUp`, `CutMix`, `Mosaic`, and the shuffles of Keras and TensorFlow.

A rank needs the rows of others for it. So the ranks gather the batch, each does for all rows what one rank does, and
keeps its own. Where a step shuffles the numbers of rows, to take rows by them, a rank has only its own rows to take:
those are shuffled among themselves, and a line says so.

Relies on: `MixUp.call` and `CutMix.call` (Keras 3.9), `Mosaic.call` (3.16), public;
`keras.src.backend.tensorflow.random.shuffle` (Keras 3); and (TensorFlow 2.16 to 2.21, private)
`gen_random_ops.random_shuffle` and `gen_stateless_random_ops_v2.stateless_shuffle`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.patches.across_rows import gathered_batch
from matex_tf.patches.common import batch_share, log_once, under_way, wrapping
from matex_tf.patches.random import row_span

_LAYERS = {"mix_up": "MixUp.call", "cut_mix": "CutMix.call", "mosaic": "Mosaic.call"}
_SHUFFLES = {"gen_random_ops": "random_shuffle", "gen_stateless_random_ops_v2": "stateless_shuffle"}


def install(module: ModuleType) -> None:
    """Patch tensorflow, keras.src.backend.tensorflow.random, or the module of a layer."""
    last = module.__name__.rpartition(".")[2]
    if last in _LAYERS:
        wrapping.method(module, _LAYERS[last], _layer)
    elif last == "random":
        wrapping.wrap(module, "shuffle", _shuffle)
    else:
        for name, function in _SHUFFLES.items():
            wrapping.wrap(importlib.import_module(f"tensorflow.python.ops.{name}"), function, _shuffle)


def _layer(wrapped: Any, layer: Any, args: Any, kwargs: Any) -> Any:
    data = args[0] if args else kwargs["data"]
    part = batch_share.of_draws()
    leaves = [leaf for leaf in tf.nest.flatten(data) if tf.is_tensor(leaf)]
    if part is None or not leaves or row_span.of_values(leaves[0]) is None:
        return wrapped(*args, **kwargs)
    if part.apart:
        _tell(layer.name)
        return wrapped(*args, **kwargs)
    rest = {name: value for name, value in kwargs.items() if name != "data"}
    return _of_all(lambda whole: wrapped(whole, *args[1:], **rest), data, part, layer.name)


def _shuffle(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    name = "x" if "x" in kwargs else "value"
    value = args[0] if args else kwargs[name]
    axis = args[1] if len(args) > 1 and isinstance(args[1], int) else kwargs.get("axis", 0)
    part = batch_share.of_draws()
    if part is None or axis != 0 or not tf.is_tensor(value) or row_span.of_values(value) is None:
        return wrapped(*args, **kwargs)
    if part.apart or _is_range(value):
        _tell("a shuffle")
        return wrapped(*args, **kwargs)
    rest = {key: given for key, given in kwargs.items() if key != name}
    return _of_all(lambda whole: wrapped(whole, *args[1:], **rest), value, part, "a shuffle")


def _of_all(function: Callable[[Any], Any], data: Any, part: batch_share.StepShare, label: str) -> Any:
    """This rank's rows of what a function gives for the rows of all ranks."""
    places: list[Any] = []

    def gather(leaf: Any) -> Any:
        if not tf.is_tensor(leaf) or row_span.of_values(leaf) is None:
            return leaf
        whole, place = gathered_batch.gather(leaf, part, f"rows that {label} mixes")
        places.append(place)
        return whole

    whole = tf.nest.map_structure(gather, data)
    with under_way.having(draws_apart=True):
        results = function(whole)
    return tf.nest.map_structure(lambda leaf: gathered_batch.take_own(leaf, places[0]), results)


def _is_range(value: Any) -> bool:
    """Whether these are the numbers of rows."""
    if tf.executing_eagerly():
        numbers = value.numpy()
        return numbers.ndim == 1 and bool((numbers == range(len(numbers))).all())
    op = value.op
    while op.type in ("Cast", "Identity", "Reshape"):
        op = op.inputs[0].op
    return bool(op.type == "Range")


def _tell(label: str) -> None:
    log_once.log(
        f"{label} mixes rows of the batch: each rank mixes its own rows only. To mix all, do it in the pipeline "
        "(docs/patched-steps.md)."
    )
