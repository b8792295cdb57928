"""The iterators of epochs of Keras 3, and the pipelines that its adapters of data make.

A pipeline is made once for each `fit`, `evaluate` or `predict`, where what walks over the data is made: of this rank's
rows, if they can be told apart.

Relies on (Keras 3.3 to 3.15): `TFEpochIterator`, its `reset`, `data_adapter`, `_distributed_dataset` and
`_num_batches`, and `get_tf_dataset` of three adapters (private).
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from matex_tf.core import world
from matex_tf.patches.common import log_once, model_state, under_way, wrapping
from matex_tf.patches.data import array_sharding, batches
from matex_tf.patches.division import own_rows
from matex_tf.patches.fit.epochs import unused_iterators
from matex_tf.patches.fit.step import one_rank_shapes
from matex_tf.patches.recovery import resume_fit
from matex_tf.patches.sources import decide, shuffle_orders, source_sharding
from matex_tf.patches.sources.decide import Price, Source
from matex_tf.patches.sources.pipeline_ownership import Made
from matex_tf.patches.turns import from_generator, generators, pydatasets
from matex_tf.state import notes


def install(module: ModuleType) -> None:
    """Patch keras.src.backend.tensorflow.trainer."""
    wrapping.wrap(module, "TFEpochIterator.__init__", _epoch_iterator)
    for name, method, wrapper in (
        ("array_data_adapter", "ArrayDataAdapter.get_tf_dataset", _array_pipeline),
        ("py_dataset_adapter", "PyDatasetAdapter.get_tf_dataset", _batches_in_turn),
        ("generator_data_adapter", "GeneratorDataAdapter.__init__", _peek),
        ("generator_data_adapter", "GeneratorDataAdapter.get_tf_dataset", _of_generator),
    ):
        wrapping.wrap(importlib.import_module(f"keras.src.trainers.data_adapters.{name}"), method, wrapper)


def _epoch_iterator(wrapped: Any, iterator: Any, args: Any, kwargs: Any) -> Any:
    """What walks over the data of one `fit`, `evaluate` or `predict`; its pipeline is made here, once."""
    fitted, predicting = under_way.pending("fit"), under_way.pending("predict")
    training = fitted is not None
    if predicting is not None and (call := model_state.of(predicting).call) is not None and call.whole:
        return wrapped(*args, **kwargs)
    source_sharding.check_batched(kwargs.get("x"))
    what = "fit" if training else "evaluate" if predicting is None else "predict"
    chosen = model_state.of(fitted).row_choice if training else None
    epochs_asked = under_way.EpochsAsked(training, kwargs, what, chosen)
    with under_way.having(epochs_asked=epochs_asked), source_sharding.paused():
        result = wrapped(*args, **kwargs)
    if training and (this := resume_fit.under_way(fitted)) is not None:
        this.is_of(*_draws_of(iterator))
    adapter = iterator.data_adapter
    if type(adapter).__name__ == "ArrayDataAdapter":
        if chosen is not None:
            chosen.has_epochs(iterator, own=False)
        iterator._num_batches = adapter.num_batches
        unused_iterators.leave_out(iterator)
        one_rank_shapes.note(iterator)
        return result
    of_tf_data = type(adapter).__name__ == "TFDatasetAdapter"
    found = decide.whose(iterator._distributed_dataset, kwargs["x"] if of_tf_data else None, iterator._num_batches)
    if chosen is not None:
        chosen.has_epochs(iterator, found.own or found.uneven)
        return result
    if found.own:
        iterator._distributed_dataset = array_sharding.as_own(iterator._distributed_dataset, found, what)
        _as_long(iterator, found.batches)
    else:
        notes.put(iterator._distributed_dataset, found.made)
        if (spent := notes.found(adapter, Price)) is not None:
            notes.put(iterator._distributed_dataset, spent)
        if predicting is not None:
            model_state.of(predicting).predicts = found.made
        if of_tf_data:
            steps = iterator.steps_per_epoch if training else None
            _divide(iterator, found.made, what, steps and steps * model_state.of(fitted).epochs)
    if of_tf_data:
        shuffle_orders.agree_before_walks(iterator)
        unused_iterators.leave_out(iterator)
    return result


def _draws_of(iterator: Any) -> tuple[bool, bool]:
    """Of the data of an epoch iterator: see `resume_fit.Fit.is_of`."""
    adapter = iterator.data_adapter
    arrays = type(adapter).__name__ == "ArrayDataAdapter"
    counted = arrays or (type(adapter).__name__ == "TFDatasetAdapter" and adapter.num_batches is not None)
    shuffles_batches = arrays and adapter._shuffle == "batch"
    return counted, counted and not iterator.steps_per_epoch and not shuffles_batches


def _divide(iterator: Any, made: Made, what: str, batches_used: int | None) -> None:
    """Let an epoch iterator of Keras make this rank's rows of each batch alone, where that can be done.

    Args:
        batches_used: in all, at most; None where nobody knows.
    """
    with source_sharding.paused():
        if not decide.asked(Source.DIVIDED, what == "fit"):
            from_generator.look(iterator._distributed_dataset, what)
        divided = own_rows.decided(iterator._distributed_dataset, made, what, batches_used)
    if divided.dataset is not None:
        one_rank_shapes.note_rows(divided.dataset, divided.rows)
        iterator._distributed_dataset = divided.dataset
    if divided.kept:
        notes.put(iterator._distributed_dataset, batches.DoneByAll(divided.done_by_all()))
    if what == "fit":
        log_once.log(divided.who_does_it())


def _as_long(iterator: Any, batches: int | None) -> None:
    """Let an epoch have so many batches on every rank; Keras asks the rank's data again after it has built a model."""
    original = iterator.reset

    def reset() -> None:
        original()
        iterator._num_batches = batches

    iterator.reset = reset
    iterator._num_batches = batches


def _array_pipeline(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> Any:
    asked = under_way.now().epochs_asked
    if asked is None:
        return wrapped(*args, **kwargs)
    return array_sharding.pipeline(
        adapter, lambda: wrapped(*args, **kwargs), asked.purpose, asked.arguments, chosen=asked.choice
    )


def _batches_in_turn(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> Any:
    asked = under_way.now().epochs_asked
    if asked is None:
        return wrapped(*args, **kwargs)
    if asked.choice is not None:
        return asked.choice.of_pydataset(adapter)
    steps = int(asked.arguments.get("steps_per_epoch") or 0)
    return pydatasets.pipeline(adapter, lambda: wrapped(*args, **kwargs), asked.purpose, steps)


def _peek(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> Any:
    if under_way.now().epochs_asked is None or world.current().is_single:
        return wrapped(*args, **kwargs)
    return generators.peek(lambda: wrapped(*args, **kwargs), adapter, args[0] if args else kwargs["generator"])


def _of_generator(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> Any:
    asked = under_way.now().epochs_asked
    if asked is None or world.current().is_single:
        return wrapped(*args, **kwargs)
    by_all = asked.choice is not None
    return generators.pipeline(adapter, lambda: wrapped(*args, **kwargs), "" if by_all else asked.purpose)
