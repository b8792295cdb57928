"""A tf.data pipeline as data to decide about (`decide`): whether ranks divide the work on it, and what is said of it.

Pipelines over files may be a rank's own although they look alike (`pipeline_ownership`). So before the work on one is
divided the ranks compare rows of it (`first_rows`), as they compare the first batch where each runs the whole.
"""

from __future__ import annotations

from typing import Any

from matex_tf import settings
from matex_tf.patches.division import first_rows, own_rows
from matex_tf.patches.division.own_rows import Divided
from matex_tf.patches.sources import decide, pipeline_ownership
from matex_tf.patches.sources.decide import Source
from matex_tf.patches.sources.pipeline_ownership import Made
from matex_tf.patches.sources.reasons import NOTHING, Reason, Unfit, Why


class Pipeline(decide.Data):
    """A pipeline of `fit`, `evaluate` or `predict`, batches that every rank has.

    Attributes:
        source: see `decide.Data`.
        divided: this rank's rows of it, once somebody has asked whether they can be had.
    """

    source = Source.DIVIDED

    def __init__(self, dataset: Any, made: Made):
        self._dataset, self._made, self._rows = dataset, made, None
        self.divided = Divided(None, [], 0, NOTHING)

    def unfit(self) -> Why:
        """See `decide.Data`."""
        if not self._made.ordered:
            return Reason.ORDER()
        self.divided = own_rows.divide(self._dataset)
        compares = self._made.source is not pipeline_ownership.Source.SAME and settings.current().rows == "auto"
        if compares and self.divided.dataset is not None:
            try:
                self._rows = first_rows.pipeline(self._dataset)
            except Unfit as error:
                return error.why
        return NOTHING if self.divided.dataset is not None else self.divided.kept

    def compare(self, what: str) -> Why:
        """See `decide.Data`."""
        return decide.compared(lambda: decide.first_of(self._rows), self._made, what)


def divide(dataset: Any, made: Made, what: str) -> Divided:
    """The pipeline of this rank's rows; `dataset` None in it where every rank runs the whole. All ranks come here.

    Args:
        dataset: batches that every rank has.
        made: what is known of it.
        what: whose data these are: "fit", "evaluate" or "predict".
    """
    pipeline = Pipeline(dataset, made)
    decision = decide.decide(pipeline, what)
    return Divided(None, [], 0, decision.why) if decision.source is Source.WHOLE else pipeline.divided


def done_by_all(divided: Divided) -> str:
    """What of the work every rank does, and why; in words, where there is a reason."""
    if not divided.kept:
        return ""
    if divided.dataset is None:
        return f"every rank does all of the work on it: {divided.kept}"
    return f"all ranks do what comes before it, since {divided.kept}"


def in_words(divided: Divided) -> str:
    """Who does what."""
    if divided.dataset is None:
        because = f": {divided.kept}" if divided.kept else ""
        kept = "its batches" if settings.current().batch == "per-rank" else "its rows of each batch"
        return f"each rank runs the whole tf.data pipeline and keeps {kept} (--data exact){because}"
    maps = f"{divided.maps} map{'s' * (divided.maps > 1)}"
    every = f"; {done_by_all(divided)}" if divided.kept else ""
    return f"each rank runs {maps} of the tf.data pipeline for its rows of each batch (--data exact){every}"
