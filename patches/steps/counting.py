"""Training steps of `fit` and `train_on_batch` are counted, and the script ends after as many as `--steps` says."""

from __future__ import annotations

from matex_tf import settings
from matex_tf.patches.common import log_once
from matex_tf.state import run_state


def count() -> bool:
    """Count a training step, of whatever model; every rank counts the same. Returns: whether the script is to `end`."""
    run = run_state.current()
    run.trained += 1
    return run.trained == settings.current().steps


def end() -> None:
    """End the script. Nothing may be under way then. Raises: SystemExit: always."""
    trained = run_state.current().trained
    log_once.log(f"the script was ended after {trained} training step{'s' * (trained > 1)} (--steps)")
    raise SystemExit(0)


def finish() -> None:
    """Say where the script has ended before it came to the step at which it was to be ended."""
    wanted, counted = settings.current().steps, run_state.current().trained
    if counted < wanted:
        log_once.log(
            f"the script came to its own end after {counted} training step{'s' * (counted != 1)} of fit and "
            f"train_on_batch, not {wanted} (--steps); those of other loops are not counted"
        )
