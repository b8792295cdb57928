"""What happens around each step of a model beside the step itself.

What has something to do there derives `StepPart` in a file of its own, and is one line in `STEP_PARTS` of
`patches.table`, in the order in which parts come, or one of the `step_parts` of a feature. `SharedStep` runs them, and
knows none of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it imports TensorFlow, and features serve Keras on JAX too
    from matex_tf.patches.common.row_slicing import RowRange


@dataclasses.dataclass
class StepRun:
    """One run of a step.

    Attributes:
        model: whose step it is.
        kind: "train" or "test".
        data: a batch of which `share` are this rank's rows, or those rows alone; a nested structure of tensors.
        slices: for each leaf of `data`, whether its first axis runs over rows.
        share: which rows of the batch count for this rank.
        function: the compiled step, of a batch and an int32 tensor for the share; None if there is none such.
        first: whether it is the first training step of a `fit`: ranks compare models, and take rank 0's weights.
        whole: whether it leaves the state of one rank on every rank; see `fit.step.partitioned_step`.
        in_group: whether the ranks of a group make it, and not all ranks of the job.
        resumes: whether it belongs to a `fit` that has checkpoints, and that is not yet where the last one was taken.
        logs: what the step gave.
        scores: numbers and losses of this rank's rows, if rows are scored.
        computing: seconds that the step ran.
        tracing: seconds from the call to its end, if a graph was made for it; else 0.
    """

    model: Any
    kind: str
    data: Any
    slices: tuple[bool, ...]
    share: RowRange
    function: Any = None
    first: bool = False
    whole: bool = False
    in_group: bool = False
    resumes: bool = False
    logs: Any = None
    scores: Any = None
    computing: float = 0.0
    tracing: float = 0.0


class StepPart:
    """What one feature does around the steps of one model. Methods that are not overridden do nothing.

    All ranks that make a step come to each method, in the order of the table, so that they may meet in it.
    """

    def __init__(self, model: Any, kind: str):
        """Args: kind: "train" or "test"."""
        self.model, self.kind = model, kind

    def before(self, run: StepRun) -> None:
        """The step has its graph, and is about to run."""

    def around(self, run: StepRun) -> contextlib.AbstractContextManager[Any]:
        """The step runs in this context; what the first part enters it leaves last.

        If a rank dies in the step, or an exchange fails, the context is left by an exception.
        """
        return contextlib.nullcontext()

    def note(self, run: StepRun) -> None:
        """The step counts; also if this rank has learned from others that it does. No rank meets another here."""

    def after(self, run: StepRun) -> bool:
        """The step has run and counts. Returns whether it is to be run again, without the parts behind this one."""
        return False

    def tell(self) -> None:
        """Say what there is to say of the last step."""


class StepParts:
    """The parts of the steps of one model: for each method, those of them that have something to do there, in order."""

    def __init__(self, model: Any, kind: str):
        """Args: kind: "train" or "test"."""
        from matex_tf.patches.table import step_parts

        parts: list[StepPart] = []
        for place in step_parts():
            module, _, name = place.partition(":")
            parts.append(getattr(importlib.import_module(module, "matex_tf.patches"), name)(model, kind))
        self.before = [part.before for part in parts if type(part).before is not StepPart.before]
        self.around = [part.around for part in parts if type(part).around is not StepPart.around]
        self.note = [part.note for part in parts if type(part).note is not StepPart.note]
        self.after = [part.after for part in parts if type(part).after is not StepPart.after]
        self.tell = [part.tell for part in parts if type(part).tell is not StepPart.tell]
