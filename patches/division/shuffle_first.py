"""`map(f).shuffle(n)` becomes `shuffle(n).map(f)`, so that the work of f can be divided.

The order that a shuffle draws depends on its seed, on how often it has been walked over and on the number of elements,
and on nothing else. So for a function that only computes the elements are the same, in the same order. It has to be
done when the script builds the pipeline: a shuffle that is made later would begin to count anew.

A `repeat` behind it stays behind it: TensorFlow makes the two one, which draws other orders than each by itself.

Relies on (TensorFlow 2.16 to 2.21): `tf.data.Dataset.shuffle` and `repeat` (public).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from matex_tf import settings
from matex_tf.patches.common import wrapping
from matex_tf.patches.division import deferred
from matex_tf.patches.sources import calls, decide, source_sharding
from matex_tf.patches.sources.decide import Source


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    wrapping.method(module, "data.Dataset.shuffle", _shuffle)
    wrapping.method(module, "data.Dataset.repeat", _repeat)


def _shuffle(wrapped: Any, dataset: Any, args: Any, kwargs: Any) -> Any:
    if settings.current().data != "exact" or not source_sharding.is_script_at_work():
        return wrapped(*args, **kwargs)
    if source_sharding.found(dataset):
        return wrapped(*args, **kwargs)
    form = None if decide.asked(Source.DIVIDED) else deferred.split(dataset)
    if form is None or not form.stages:
        return wrapped(*args, **kwargs)
    with source_sharding.paused():
        return deferred.joined(form._replace(source=form.source.shuffle(*args, **kwargs)), dataset)


def _repeat(wrapped: Any, dataset: Any, args: Any, kwargs: Any) -> Any:
    form = None if source_sharding.paused else deferred.form_of(dataset)
    if form is None or calls.kind(form.source) != "shuffle":
        return wrapped(*args, **kwargs)
    with source_sharding.paused():
        return deferred.joined(form._replace(source=form.source.repeat(*args, **kwargs)), dataset)
