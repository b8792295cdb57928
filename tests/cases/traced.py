"""A training with a timeline."""

from __future__ import annotations

from pathlib import Path

from cases.common import classifier, compiled, table

from matex_tf import trace, world


def train(tmp, schedule="chained"):
    """What rank 0 wrote, and whether a span costs anything before and after."""
    from cases.schedules import scheduled

    off = trace.span("pack") is trace.span("wait")
    trace.start(world.current())
    x, y = table()
    with scheduled(schedule, 256):
        compiled(classifier()).fit(x, y, batch_size=25, epochs=2, verbose=0)
    path = Path(tmp) / "timeline.json"
    trace.write(world.current(), str(path))
    off = off and trace.span("pack") is trace.span("wait")
    return off, path.read_text() if world.rank() == 0 else path.exists()


def nowhere():
    """A file that cannot be written."""
    trace.start(world.current())
    trace.write(world.current(), "/nowhere/timeline.json")
