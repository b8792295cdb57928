"""A training with a timeline."""

from __future__ import annotations

from pathlib import Path

from matex_tf.core import trace, world
from tests.support.cases.common import classifier, compiled, table


def train(tmp, schedule="chained"):
    """What rank 0 wrote, and whether a span costs anything before and after."""
    from tests.support.cases.schedules import scheduled

    off = trace.span("pack") is trace.span("wait")
    path = Path(tmp) / "timeline.json"
    trace.start(world.current(), str(path))
    x, y = table()
    with scheduled(schedule, 256):
        compiled(classifier()).fit(x, y, batch_size=25, epochs=2, verbose=0)
    trace.write(world.current(), str(path))
    off = off and trace.span("pack") is trace.span("wait")
    return off, path.read_text() if world.rank() == 0 else path.exists()


def nowhere():
    """A file that cannot be written, as is known before anything is recorded."""
    try:
        trace.start(world.current(), "/nowhere/timeline.json")
    finally:
        assert trace.span("pack") is trace.span("wait")


def vanishes(tmp):
    """A file whose directory goes while the script runs."""
    folder = Path(tmp) / f"of {world.rank()}"
    folder.mkdir()
    trace.start(world.current(), str(folder / "timeline.json"))
    folder.rmdir()
    trace.write(world.current(), str(folder / "timeline.json"))
