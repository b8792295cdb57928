"""Whether the work on a pipeline of `fit`, `evaluate` or `predict` is divided, and what is said of it.

Pipelines over files may be a rank's own although they look alike (`pipeline_ownership`). So before the work on one is
divided the ranks compare rows of it (`first_rows`), as they compare the first batch where each runs the whole.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.common import log_once
from matex_tf.patches.data import batch_ownership
from matex_tf.patches.data.pipeline_ownership import Made, Source
from matex_tf.patches.division import first_rows, own_rows
from matex_tf.patches.division.own_rows import Divided


def divide(dataset: Any, made: Made, what: str) -> Divided:
    """The pipeline of this rank's rows; `dataset` None in it where every rank runs the whole. All ranks come here.

    Args:
        dataset: batches that every rank has.
        made: what is known of it.
        what: whose data these are: "fit", "evaluate" or "predict".
    """
    chosen, ranks = settings.current(), world.current()
    why = undivided()
    if not why and not made.ordered:
        why = "its order is not fixed"
    divided = Divided(None, [], 0, why) if why else own_rows.divide(dataset)
    if divided.dataset is not None and made.source is not Source.SAME and chosen.rows == "auto":
        try:
            rows = first_rows.pipeline(dataset)
        except first_rows.Unfit as error:
            divided = Divided(None, [], 0, str(error))
    if not all(ranks.allgather(divided.dataset is not None, "divide the work on the data")):
        return divided._replace(dataset=None)
    if made.source is not Source.SAME and chosen.rows == "auto":
        finding = batch_ownership.look(_first(rows), made, f"compare rows of the data of {what}")
        if finding.own or finding.differs:  # the first batch of the whole pipeline says more
            return Divided(None, [], 0, "its rows differ between ranks")
    return divided


def undivided() -> str:
    """Why no work on data is divided, as this job was started, in words; empty where it may be."""
    chosen = settings.current()
    if chosen.data == "whole":
        return "--data whole"
    if chosen.batch == "per-rank":
        return "--batch per-rank"
    if chosen.reproducible:
        return "the parts of virtual ranks are cut of whole batches (--reproducible)"
    if world.current().guard is not None:
        return "a rank that dies (--faults shrink) would take its rows with it"
    return ""


def _first(rows: Any) -> Any:
    """The first batch; None where there is none, or it cannot be read: the step that wants it says why."""
    try:
        return next(iter(rows), None)
    except tf.errors.OpError:
        return None


def done_by_all(divided: Divided) -> str:
    """What of the work every rank does, and why; in words, where there is a reason."""
    if divided.dataset is None:
        return f"every rank does all of the work on it: {divided.kept}"
    return f"what stands in front is done by all, since {divided.kept}"


def tell(divided: Divided) -> None:
    """Say of the data of `fit` who does what."""
    if divided.dataset is None:
        because = f": {divided.kept}" if divided.kept else ""
        kept = "its batches" if settings.current().batch == "per-rank" else "its rows of each batch"
        log_once.log(f"each rank runs the whole tf.data pipeline and keeps {kept} (--data exact){because}")
        return
    maps = f"{divided.maps} map{'s' * (divided.maps > 1)}"
    every = f"; {done_by_all(divided)}" if divided.kept else ""
    log_once.log(f"each rank runs {maps} of the tf.data pipeline for its rows of each batch (--data exact){every}")
