"""Ranks without a row of a batch: they run the step on a row that does not count.

A batch may have fewer rows than there are ranks, and every rank must meet the others in the step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from matex_tf import settings
from matex_tf.patches.common import keras_lines, seeds
from matex_tf.patches.keras import batch_norm, metrics
from matex_tf.patches.steps.step_part import StepPart, StepRun


class Ghosts(StepPart):
    """What a step on a row that does not count must not change is put back: metrics, moving statistics."""

    @contextlib.contextmanager
    def around(self, run: StepRun) -> Iterator[None]:
        if run.share.rows or run.whole or settings.current().reproducible:
            yield
            return
        before = [(variable, np.asarray(variable.numpy())) for variable in self._put_back()]
        yield
        metrics.put_back(self.model, before)

    def _put_back(self) -> list[Any]:
        model = self.model
        found = [variable for metric in metrics.leaves(model) for variable in keras_lines.states(metric)]
        # Statistics over the rows of all ranks are right on a ghost too, and so is what follows from weights alone.
        right = {id(v) for layer in model._flatten_layers() if batch_norm.over_all_rows(layer) for v in layer.variables}
        right.update(id(layer.vector_u) for layer in model._flatten_layers() if hasattr(layer, "vector_u"))
        others = keras_lines.variables(model, "non_trainable_variables")
        kept = [variable for variable in others if id(variable) not in right]
        # Generators draw on a ghost as on every rank.
        return [*found, *(variable for variable in kept if not seeds.is_generator_state(variable))]
