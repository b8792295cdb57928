"""The first training step of a model, held against one rank where code of the script's own takes part in it.

What Keras computes by itself is that of one rank: its own `train_step`, layers and losses, see `patches.keras`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.across_rows import keras_losses, models, whole_batch
from matex_tf.patches.checking import effects, one_rank
from matex_tf.patches.common import row_slicing, xla
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.keras import weights
from matex_tf.patches.steps.step_part import StepPart, StepRun

_STEPS = ("train_step", "compute_loss")


class FirstStep(StepPart):
    """The first training step of a model is held against one rank, once."""

    def __init__(self, model: Any, kind: str):
        super().__init__(model, kind)
        self._done = False
        self._check: one_rank.Check | None = None  # of the step that runs

    def before(self, run: StepRun) -> None:
        virtual = settings.current().reproducible
        if run.first and not self._done and not (run.resumes or virtual or run.in_group or run.whole):
            self._done = True
            self._check = begin(self.model, run.function, run.data, run.slices, run.share)

    def around(self, run: StepRun) -> contextlib.AbstractContextManager[Any]:
        return self._check.watching() if self._check else contextlib.nullcontext()

    def tell(self) -> None:
        check, self._check = self._check, None
        if check is not None and (reason := check.tell()):
            one_rank.say_why_not(check.name, reason)


def begin(model: Any, step: Any, data: Any, slices: Sequence[bool], share: RowRange) -> one_rank.Check | None:
    """Before the first step: rank 0 computes it alone. All ranks come here; None where it is not to be checked.

    Args:
        model: which is trained.
        step: the compiled step, of a batch and the tensor of a share; None where it is not compiled.
        data: a batch, of which `share` are this rank's rows; or those rows alone.
        slices: which of its leaves have rows.
    """
    asked, ranks = settings.current().check, world.current()
    if asked == "off" or (asked == "auto" and not has_own_code(model)):
        return None
    name = f"{type(model).__name__} {model.name}"
    reason = one_rank.aside() or _obstacle(model, step, data, slices, share)
    numbers = row_slicing.as_tensor(RowRange(0, share.total, share.total, share.total, 0))
    function = step
    if not reason:
        function = step if hasattr(step, "captured_inputs") else step.get_concrete_function(data, numbers)
        reason = effects.obstacle(function)
    everyone = ranks.allgather((reason, row_slicing.rows_of(data) == share.total), one_rank.WHAT)
    reason = next((one for one, _ in everyone if one), "")
    if not reason and not all(has_whole for _, has_whole in everyone):
        data = whole_batch.joined(data, slices, share)
    if reason:
        one_rank.say_why_not(name, reason)
        return None
    check = one_rank.Check(name, share.rows / share.total, lambda: _accumulated(model))

    def run() -> None:
        with xla.called(model.jit_compile):
            step(data, numbers)

    if ranks.rank == 0:
        check.run_alone(run, function)
    return check


def has_own_code(model: Any) -> bool:
    """Whether a step of a model runs code that is not Keras'."""
    if any(name in vars(model) for name in _STEPS) or not all(
        keras_losses.of_keras(getattr(type(model), name)) for name in _STEPS if hasattr(type(model), name)
    ):
        return True
    losses = [one for one in tf.nest.flatten(getattr(model, "loss", None)) if one is not None]
    return not models.is_of_keras(model) or not all(
        isinstance(one, (str, dict)) or (keras_losses.of_keras(one) and keras_losses.of_keras(getattr(one, "fn", one)))
        for one in losses
    )


def _obstacle(model: Any, step: Any, data: Any, slices: Sequence[bool], share: RowRange) -> str:
    """Why the step cannot be held against one rank, in words; "" where it can."""
    if step is None:
        return "run_eagerly=True would run its Python twice"
    if not share.total:
        return "its batch has no rows"
    if settings.current().check == "auto":
        bytes_of_row = sum(
            int(np.prod(leaf.shape[1:])) * leaf.dtype.size
            for leaf, has_rows in zip(tf.nest.flatten(data), slices, strict=True)
            if has_rows and isinstance(leaf, tf.Tensor)
        )
        return one_rank.affordable(model.trainable_variables, bytes_of_row * share.total, share.total)
    return ""


def _accumulated(model: Any) -> list[one_rank.Part]:
    """What a rank has accumulated of gradients that are exchanged with a later update."""
    return [
        (f"the gradient of {one.path}", np.array(one.numpy(), np.float32)) for one in weights.own_accumulators(model)
    ]
