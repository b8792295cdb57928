"""The settings of jobs that are started again."""

from __future__ import annotations

import dataclasses

from matex_tf.settings import option


@dataclasses.dataclass(frozen=True)
class RestartOptions:
    """What a user has asked for."""

    checkpoint_seconds: float = option(
        300.0,
        "With `--faults restart`: seconds between checkpoints within an epoch. With 0 there is only one at the end of "
        "each epoch.",
        kind="seconds",
        group="faults",
    )
    checkpoint_dir: str = option(
        "",
        "With `--faults restart`: the directory for checkpoints, which go to `.matex-checkpoints/NAME` in it, NAME "
        "being that of the script. All hosts must see it. When the job ends well, it removes what it has written "
        "there, and nothing else. Empty for the working directory.",
        kind="dir",
        group="faults",
    )
    max_restarts: int = option(
        3,
        "With `--faults restart`: how often `matex-tf run` starts the job again.",
        kind="count",
        group="faults",
    )
    resume: bool = option(
        False,
        "With `--faults restart`: resume from the checkpoints of an earlier job that did not reach its end, if there "
        "are any. With `off` they are removed when the job begins.",
        kind="switch",
        group="faults",
        common=True,
    )
