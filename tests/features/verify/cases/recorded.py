"""Any case, with what it trains written down as `matex-tf verify` has it; the pool's ranks must have begun for that."""

from __future__ import annotations

import inspect
import os

from matex_tf.core import starting, world
from matex_tf.features.verify import record
from matex_tf.state import run_state
from tests.support.named import find


def recorded(case, kwargs, folder, nudges, tmp):
    """Run a case, and record it on rank 0.

    Args:
        case, kwargs: its path and its arguments.
        folder: has a folder for each world, by its size and the number of its group.
        nudges: by the number of the group, see `record.NUDGE`.
    """
    from matex_tf.features.verify.patches import recorder

    group = int(tmp.rpartition(".")[2])
    into = os.path.join(folder, f"{world.size()}.{group}")
    os.makedirs(into, exist_ok=True)
    before, run = run_state.part(recorder.Recorder), run_state.current()
    run.begin(recorder.Recorder({starting.RECORD: into, record.NUDGE: str(nudges[group])}))
    function = find(case)
    more = {"tmp": tmp} if "tmp" in inspect.signature(function).parameters else {}
    try:
        return function(**kwargs, **more)
    finally:
        run.begin(before)
