"""A job that can be watched: what its ranks count is reported, and shown where that is asked for."""

from __future__ import annotations

import os

from matex_tf.core import sign, trace
from matex_tf.core.output import TERMINAL
from matex_tf.core.world import World
from matex_tf.features import registry
from matex_tf.job.target import Target
from matex_tf.launch import resources
from matex_tf.settings import Settings, options
from matex_tf.watching import meter
from matex_tf.watching.progress import Progress
from matex_tf.watching.reporter import Reporter, Show


def begin(world: World, settings: Settings, target: Target, seed: int, counts: meter.Meter) -> Reporter | None:
    """Report from now on. Collective; None where that is not wanted.

    Args:
        target: what the job runs.
        seed: which all of it was given.
        counts: what is reported.

    Raises:
        SettingError: what a feature shows of it cannot be shown; on every rank.
    """
    if not settings.watch:
        return None
    trace.add_up(meter.EXCHANGE, meter.WAIT)
    shown: list[Show] = [show for begins in registry.functions("shows") if (show := begins(world, settings))]
    if settings.progress == "on" or (settings.progress == "auto" and settings.notes):
        columns = os.environ.get(TERMINAL, "0")
        progress = Progress(world.log_to, int(columns) if columns.isdigit() else 0, settings.progress == "on")
        counts.before_output(progress.erase)
        shown.append(progress.show)
    values = settings.values()
    given = {one.name: one.as_text(values[one.name]) for one in options() if values[one.name] != one.default}
    run = {"words": target.words, "directory": os.getcwd(), "settings": given, "seed": seed, "of": sign.of_job()}
    for watched in registry.functions("watched"):
        watched(world, settings, run)
    script = os.path.basename(target.name)
    return Reporter(world, counts, script, settings, resources.in_batch_system(), shown, run)
