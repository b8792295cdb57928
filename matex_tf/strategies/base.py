"""What a strategy is: what it is told while a script trains, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from matex_tf.settings import Settings

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None


class Strategy:
    """What is exchanged, with whom and when. Every method is called at the same point on every rank.

    A training of `fit` calls `begin`; for each batch the graph of the step, then `after_step`; and `flush`
    wherever the weights are to be looked at. A loop of the script's own has `exchange` alone, and so has every strategy
    whose `only_in_fit` is set, which is replaced by sync there.

    Attributes:
        name: as settings have it.
        note: what it changes of what is computed, in a line that is said when it starts; "" where that is nothing.
        averages_gradients: whether gradients come weighted by n_r / n, this rank's part of the batch, to be added up
            over the ranks; else they come as the mean over the rank's own rows, and are 0 on a rank that has none.
        delays_updates: whether `delay` is called in place of `exchange`.
        replicas_identical: whether all ranks have the same weights after each step; else they have after `flush`.
        only_in_fit: whether it needs to know when the weights are looked at.
    """

    name = ""
    averages_gradients = True
    delays_updates = False
    replicas_identical = True
    only_in_fit = False

    def __init__(self, told: Settings):
        """Args: told: the settings of the run."""
        self.told = told

    @property
    def note(self) -> str:
        return ""

    def exchange(self, gradients: Sequence[Gradient], names: Sequence[str]) -> list[Gradient]:
        """In the graph of a step, where gradients are unscaled and accumulated but not yet clipped.

        Args:
            gradients: one for each variable, see `averages`; None where there is none.
            names: the variables' paths, for messages.

        Returns:
            What the optimizer shall apply, in the same order.
        """
        return list(gradients)

    def delay(
        self,
        key: Any,
        gradients: Sequence[Gradient],
        names: Sequence[str],
        apply: Callable[[list[Gradient]], None],
    ) -> None:
        """In the graph of a step, in place of `Optimizer.apply`.

        Args:
            key: the optimizer, or another object that stands for one sequence of updates; kept by a weak reference.
            gradients, names: as for `exchange`, but before anything is done with the gradients.
            apply: applies gradients as the optimizer would; in this graph, or in eager mode.
        """
        raise NotImplementedError

    def begin(self, model: Any, trainable: Sequence[Any], state: Sequence[Any]) -> None:
        """Before the first step of a `fit`, when every rank has rank 0's weights.

        Args:
            model: kept by a weak reference, if at all.
            trainable: its trainable variables, of Keras, in the order of layers.
            state: its variables that change in training by themselves, such as moving statistics.
        """

    def after_step(self, model: Any) -> None:
        """After each training step, outside of any graph."""

    def flush(self, model: Any) -> None:
        """Before validation, `evaluate`, `predict`, saving, at the end of `fit`, and after `train_on_batch`.

        When this returns nothing is under way, all that was computed has been applied, and every rank has the same
        weights. `state` of `begin` is averaged by the caller. May be called when nothing has happened since.
        """

    def end(self, model: Any) -> None:
        """After the last `flush` of a `fit`: nothing more will be asked for until the next `begin`."""
