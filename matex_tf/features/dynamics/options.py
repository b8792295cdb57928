"""The settings of trainings that change while they run."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from matex_tf.errors import MatexError, SettingError
from matex_tf.settings import option
from matex_tf.settings.conflicts import refuse

if TYPE_CHECKING:
    from matex_tf.settings import Settings


@dataclasses.dataclass(frozen=True)
class DynamicsOptions:
    """What a user has asked for."""

    apoptosis: bool = option(
        False,
        "Whether redundant neurons are taken out of a model while `fit` trains it, at times that adapt to the progress "
        "of the loss. Steps become smaller and faster, and the answer is that of a smaller network.",
        kind="switch",
    )
    apoptosis_tolerance: float = option(
        0.01,
        "With `--apoptosis on`: what removals may add to the loss, on validation rows or rows of training batches. "
        "It is a part of the geometric mean of the lowest loss so far and the loss before the first step. A removal "
        "that adds more is taken back.",
        kind="number",
    )
    grow: bool = option(
        False,
        "Whether `fit` begins with a part of the widths of the script's model. They grow when the loss stops "
        "falling, and in the first three fifths of the training.",
        kind="switch",
    )
    grow_from: float = option(
        0.25,
        "With `--grow on`: the part of its widths that a model begins with.",
        kind="number",
    )
    grow_depth: bool = option(
        False,
        "With `--grow on`: whether residual blocks that repeat an earlier one begin only when the widths are there.",
        kind="switch",
    )
    grow_to: float = option(
        1.0,
        "With `--grow on`: the part of the widths that a model may reach; above 1 it only grows while that pays.",
        kind="number",
    )

    @property
    def changes_networks(self) -> bool:
        """Whether models change while they train."""
        return self.apoptosis or self.grow

    @property
    def changes(self) -> str:
        """What it changes of the answer, for the first line of a job."""
        flags = [f"--{name}" for name in ("apoptosis", "grow") if getattr(self, name)]
        return f"{', '.join(flags)}: neurons come and go while fit trains" * bool(flags)

    @property
    def changes_one_rank(self) -> bool:
        """See `Settings.changes_one_rank`."""
        return self.changes_networks

    def refuse_keras_2(self) -> None:
        """Refuse models of Keras 2, which do not change while they train.

        Raises:
            MatexError: one was to change.
        """
        if self.changes_networks:
            raise MatexError(
                "--apoptosis and --grow are for models of Keras 3, and this one is of tf_keras (Keras 2): leave them "
                "out (docs/dynamics.md)."
            )

    def check(self, settings: Settings, ranks: int) -> None:
        """Refuse what cannot follow a model that changes while it trains.

        Args:
            settings: all of the run.
            ranks: how many train; it does not matter here.

        Raises:
            SettingError: what does not go together, and what to take instead.
        """
        if not self.changes_networks:
            return
        others = {
            "strategy": (("sync",), "its ranks have weights of their own, or gradients that are under way"),
            "faults": (("abort",), "what a rank or a checkpoint has kept of another network does not fit the model"),
            "transport": (("mpi",), "Horovod remembers the shapes of gradients"),
            "reproducible": ((0,), "neurons are judged by sums over the rows of each rank"),
            "shard": (("none",), "parts do not follow a model that changes while it trains"),
        }
        refuse(settings, "--apoptosis" if self.apoptosis else "--grow", others)
        if self.grow and not 0 < self.grow_from <= 1:
            raise SettingError(f"--grow-from is {self.grow_from:g}; it must be above 0 and at most 1.")
        if self.grow and self.grow_to < self.grow_from:
            raise SettingError(f"--grow-to is {self.grow_to:g}, below --grow-from, which is {self.grow_from:g}.")
