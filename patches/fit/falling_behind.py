"""A line where a strategy that changes the answer lets the loss of a `fit` grow.

Where ranks train apart, or apply gradients that are old, a rate that is right on one rank may be too large. What that
looks like is a loss that grows from one epoch to a later one, and it is the same on all ranks at the end of an epoch.
"""

from __future__ import annotations

import math
from typing import Any

from matex_tf import strategies
from matex_tf.core import world
from matex_tf.patches.common import log_once, model_state

#: So many times the least loss of the epochs before, and at least this part of the first epoch's: what is near zero may
#: go up and down.
GROWN, LEFT = 1.25, 0.5


def look(model: Any, logs: Any) -> None:
    """Say so, once, where the loss of an epoch of `fit` has grown, over all ranks.

    Args:
        model: which is trained. logs: of the epoch, over all ranks: numbers by name.
    """
    strategy, notes = strategies.current(), model_state.of(model)
    losses = notes.epoch_losses
    if world.current().is_single or not strategy.changes or losses is None or not isinstance(logs, dict):
        return
    if "loss" not in logs:
        return
    loss = float(logs["loss"])
    least = min(losses, default=math.inf)
    grown = math.isfinite(least) and loss > GROWN * abs(least) and loss > LEFT * losses[0]
    losses.append(loss)
    if grown or not math.isfinite(loss):
        notes.epoch_losses = None
        since = f", after {least:.3g} in epoch {losses.index(least) + 1}" if math.isfinite(least) else ""
        log_once.log(
            f"the loss of epoch {len(losses)} is {loss:.3g}{since}: compare with --strategy sync. If that does better, "
            f"--strategy {strategy.name} is the cause, since {strategy.changes}: {strategy.remedy}."
        )
