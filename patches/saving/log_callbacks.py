"""Callbacks that write logs do so on rank 0; elsewhere they do nothing. Where rank 0 dies, the next one continues.

It does then what it has left out at the beginning of the training.

Relies on (Keras 3.3 to 3.15): the public methods of `CSVLogger`, `TensorBoard` and `RemoteMonitor`;
`TensorBoard.embeddings_freq`, public.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from matex_tf.patches.common import keras_lines, wrapping
from matex_tf.patches.saving import model_files
from matex_tf.state import notes

#: How a training begins; a rank that becomes the first later does it then.
_BEGINNING = ("set_model", "on_train_begin")
_CLASSES = {"csv_logger": "CSVLogger", "tensorboard": "TensorBoard", "remote_monitor": "RemoteMonitor"}


class _LeftOut(dict[str, Any], notes.Inside):
    """Of a callback: what of the beginning it has not done yet."""


def install(module: ModuleType) -> None:
    """Patch keras.src.callbacks.csv_logger, .tensorboard or .remote_monitor; tf_keras.src.callbacks has all of them."""
    place = module.__name__.rpartition(".")[2]
    for logger in _CLASSES.values() if place == "callbacks" else [_CLASSES[place]]:
        _install(module, logger)


def _install(module: ModuleType, logger: str) -> None:
    for name, method in vars(wrapping.require(module, logger)).items():
        if (logger, name) == ("TensorBoard", "on_epoch_end"):
            wrapping.wrap(module, f"{logger}.{name}", _with_embeddings)
        elif name.startswith("on_") and callable(method):
            wrapping.wrap(module, f"{logger}.{name}", _on_rank_0)
        elif name == "set_model":
            wrapping.wrap(module, f"{logger}.{name}", _set_model)


def _on_rank_0(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    asked = wrapped.__name__
    if not model_files.writes():
        if asked in _BEGINNING:
            notes.of(instance, _LeftOut)[asked] = args, kwargs
        return None
    left_out = notes.drop(instance, _LeftOut) or _LeftOut()
    for name in _BEGINNING[: _BEGINNING.index(asked)] if asked in _BEGINNING else _BEGINNING:
        if name not in left_out:
            continue
        words, named = left_out[name]
        if hasattr(instance, "append"):  # of CSVLogger: the rank that has died has written to it
            instance.append = True
        getattr(instance, name)(*words, **named)
    return wrapped(*args, **kwargs)


def _with_embeddings(wrapped: Any, board: Any, args: Any, kwargs: Any) -> Any:
    """At the end of an epoch in which TensorBoard saves the model's weights, all ranks are there to prepare them."""
    every, epoch = getattr(board, "embeddings_freq", 0), args[0] if args else kwargs["epoch"]
    if not every or epoch % every:
        return _on_rank_0(wrapped, board, args, kwargs)
    model_files.prepare(board.model)
    return model_files.by_one_rank(lambda: wrapped(*args, **kwargs), "write the embeddings for TensorBoard")


def _set_model(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    _on_rank_0(wrapped, instance, args, kwargs)
    if model_files.writes():
        return
    setattr(instance, "model" if keras_lines.is_keras_2(instance) else "_model", args[0] if args else kwargs["model"])
