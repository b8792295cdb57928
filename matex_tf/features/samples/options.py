"""The settings of rows that are left out of epochs, and of their scores."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from matex_tf.errors import MatexError, SettingError
from matex_tf.settings import option
from matex_tf.settings.conflicts import refuse

if TYPE_CHECKING:
    from matex_tf.settings import Settings


class Scored:
    """Of a script: the calls of `fit` in which rows got scores."""

    fits = 0


@dataclasses.dataclass(frozen=True)
class SampleOptions:
    """What a user has asked for."""

    prune_samples: float = option(
        0.0,
        "The probability, from 0 to less than 1, with which a row is left out of an epoch. It is for rows whose last "
        "score is below the mean of all rows. The gradients of those that stay are scaled by 1 / (1 - R), as in "
        "InfoBatch. With 0 every row is used in every epoch.",
        kind="number",
    )
    prune_samples_until: float = option(
        0.875,
        "The part of a fit's epochs, from 0 to 1, after which all rows are used again.",
        kind="number",
    )
    prune_samples_by: str = option(
        "loss",
        "What the score of a row is. `loss`: its last loss, as compiled, without weights. `el2n`: the length of the "
        "error of its probabilities. `forgetting`: how often its label was forgotten. `uncertainty`: the entropy of "
        "its probabilities. `random`: leave out as many rows as by loss, but any of them, to compare with.",
        choices=("loss", "el2n", "forgetting", "uncertainty", "random"),
    )
    prune_samples_rescale: bool = option(
        True,
        "Whether to scale the gradients of rows that stay where others are left out. `off` is to compare with: the "
        "gradient of an epoch is then another one.",
        kind="switch",
    )
    sample_scores: str = option(
        "",
        "A CSV file for the score of each row, and how often it was used, at the end of each fit. Beside it, if rows "
        "are images, a picture of the hardest and the easiest ones. Empty for none.",
        kind="file",
    )

    @property
    def scores_samples(self) -> bool:
        """Whether rows get scores: to leave some out, or for a file."""
        return self.prune_samples > 0 or bool(self.sample_scores)

    @property
    def changes(self) -> str:
        """What it changes of the answer, for the first line of a job."""
        which = "rows at random" if self.prune_samples_by == "random" else "easy rows"
        return f"--prune-samples {self.prune_samples:g} changes the answer: epochs leave out {which}" * (
            self.prune_samples > 0
        )

    @property
    def changes_one_rank(self) -> bool:
        """See `Settings.changes_one_rank`."""
        return self.scores_samples

    def check(self, settings: Settings, ranks: int) -> None:
        """Refuse parts of rows, and of epochs, that cannot be, and what cannot go with scores of rows.

        Args:
            settings: all of the run.
            ranks: how many train; it does not matter here.

        Raises:
            SettingError: what is wrong, and what to take instead.
        """
        if not 0 <= self.prune_samples < 1:
            raise SettingError(
                f"--prune-samples is {self.prune_samples:g}; it must be less than 1: the probability with which a row "
                "is left out, such as 0.5."
            )
        if self.prune_samples_until > 1:
            raise SettingError(
                f"--prune-samples-until is {self.prune_samples_until:g}; it must be from 0 to 1: a part of the epochs."
            )
        if not self.scores_samples:
            return
        groups = "a batch goes to the groups that are ready, and nobody would know whose scores a row has"
        others = {
            "strategy": (("sync", "pipe", "gossip", "local"), groups),
            "groups": (("",), groups),
            "transport": (("mpi",), "Horovod is built for Keras 2 alone, whose rows have no scores here"),
            "shard": (("none",), "a step that scores rows is not rebuilt for rows"),
        }
        refuse(settings, "--prune-samples" if self.prune_samples else "--sample-scores", others)

    def refuse_keras_2(self) -> None:
        """Refuse models of Keras 2, whose rows have no scores.

        Raises:
            MatexError: they were to get some.
        """
        if self.scores_samples:
            raise MatexError(
                "--prune-samples and --sample-scores are for models of Keras 3, and this one is of tf_keras (Keras 2): "
                "leave them out (docs/keras2.md)."
            )

    def refuse_aside(self) -> None:
        """Refuse a script that shares out its data by itself.

        Raises:
            MatexError: always, as rows were to get scores.
        """
        if self.scores_samples:
            raise MatexError(
                "--prune-samples and --sample-scores are for scripts whose data matex_tf splits, and this one "
                "splits its data by itself: leave them out."
            )

    def finish(self) -> None:
        """Say, at the end of a script, that no row got a score."""
        from matex_tf.patches.common import log_once
        from matex_tf.state import run_state

        if self.scores_samples and not run_state.current().part(Scored).fits:
            log_once.log("--prune-samples and --sample-scores had no effect: the script has called no fit of Keras 3")
