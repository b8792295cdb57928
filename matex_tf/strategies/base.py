"""What a strategy is: what it says of itself, what it hears while a script trains, and what it gives back.

The module of a strategy imports TensorFlow, NumPy and the exchange in its functions: every command reads it for its
options and its help, and needs none of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from matex_tf.settings import Settings

if TYPE_CHECKING:
    import tensorflow as tf

    from matex_tf.planning.step_cost import PlannedStep, StepCost

Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices | None"


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """What a strategy without options declares."""


def path_of(variable: Any) -> str:
    """The name of a variable of Keras 3 or of TensorFlow, which those of Keras 2 are."""
    return str(getattr(variable, "path", None) or variable.name)


def held_by(variable: Any) -> Any:
    """TensorFlow's own variable, where Keras shows it; else its value."""
    return variable.value() if callable(variable.value) else variable.value


@dataclasses.dataclass(frozen=True)
class Update:
    """An update of an optimizer, for a strategy that delays it.

    Attributes:
        key: the optimizer, or another object that stands for one sequence of updates; kept by a weak reference.
        names: the paths of the variables that it updates, for messages.
        apply: applies gradients as the optimizer would; in this graph, or in eager mode.
        changed: all variables that this changes: the weights, and those of the optimizer.
        part: float64 scalar of the graph, rows of the batch that are this rank's, of all rows.
    """

    key: Any
    names: Sequence[str]
    apply: Callable[[list[Gradient]], None]
    changed: Sequence[Any]
    part: tf.Tensor


class Strategy:
    """What is exchanged, with whom and when. Every method is called at the same point on every rank.

    A training of `fit` calls `begin`; for each batch `before_step`, the graph of the step, then `after_step`; and
    `flush` wherever the weights are to be looked at. A loop of the script's own has `exchange` alone, and so has every
    strategy whose `only_in_fit` is set, which is replaced by sync there.

    Attributes:
        name: what `--strategy` calls it.
        text: what it does, for the help of `--strategy`: what comes after the name, a clause without a full stop.
        line: how plots draw it, a line style of matplotlib.
        Options: a frozen dataclass of the settings that it alone has, each declared with `settings.option`.
        settings, options: those of the run, and of them its own.
        changes: what it changes of the answer, for the first line of a job and for `matex-tf plan`; "" if nothing.
        remedy: what to do where a training with it falls behind, a clause without a full stop.
        price: what that costs in steps, for the same advice, a clause without a full stop; "" if nothing is known.
        codecs: those that `matex-tf plan` and the plots show with it; any codec goes with any strategy.
        rounded: what a codec does to what it sends, a sentence without a full stop, for the first line of a job.
        encodes_in_node: whether a codec works between ranks of one node too.
        averages_gradients: whether gradients come weighted by n_r / n, this rank's part of the batch, to be added up
            over the ranks; else they come as the mean over the rank's own rows, and are 0 on a rank that has none.
        delays_updates: whether `delay` is called in place of `exchange`.
        replicas_identical: whether all ranks have the same weights after each step; else they have after `flush`.
        only_in_fit: whether it needs to know when the weights are looked at.
        apart: whether groups of ranks train apart, each on its part of a batch; see `steps_apart`.
        deals_parts: whether the parts of batches are dealt out to whichever group is ready.
    """

    name: ClassVar[str] = ""
    text: ClassVar[str] = ""
    line: ClassVar[Any] = "-"
    Options: ClassVar[type[Any]] = NoOptions
    changes = ""
    remedy = "take a smaller learning rate, or --strategy sync"
    price: ClassVar[str] = ""
    codecs: ClassVar[tuple[str, ...]] = ("bf16", "int8")
    rounded: ClassVar[str] = "gradients are rounded between nodes"
    encodes_in_node = False
    averages_gradients = True
    delays_updates = False
    replicas_identical = True
    only_in_fit = False
    apart = False
    deals_parts = False

    def __init__(self, settings: Settings):
        """Args: settings: those of the run."""
        self.settings = settings
        self.options: Any = settings.of(self.Options)

    @classmethod
    def check(cls, settings: Settings, ranks: int) -> None:
        """Refuse settings that do not go together with this strategy.

        Args:
            ranks: how many there are; 0 if nobody knows yet.

        Raises:
            SettingError: what does not go together, and what to take instead.
        """

    def predict(self, step: PlannedStep) -> StepCost:
        """What a step takes with this strategy and its options, for `matex-tf plan`.

        By default, what it takes to average gradients.
        """
        return step.overlapped()

    def exchange(self, gradients: Sequence[Gradient], names: Sequence[str]) -> list[Gradient]:
        """In the graph of a step, where gradients are unscaled and accumulated but not yet clipped.

        Args:
            gradients: one for each variable, see `averages`; None where there is none.
            names: the variables' paths, for messages.

        Returns:
            What the optimizer shall apply, in the same order.
        """
        return list(gradients)

    def delay(self, update: Update, gradients: Sequence[Gradient]) -> None:
        """In the graph of a step, in place of `Optimizer.apply`.

        Args:
            gradients: as for `exchange`, but before anything is done with them.
        """
        raise NotImplementedError

    def begin(self, model: Any, trainable: Sequence[Any], state: Sequence[Any]) -> None:
        """Before the first step of a `fit`, when every rank has rank 0's weights.

        Args:
            model: kept by a weak reference, if at all.
            trainable: its trainable variables, of Keras, in the order of layers.
            state: its variables that change in training by themselves, such as moving statistics.
        """

    def before_step(self, model: Any) -> None:
        """Before each training step, outside of any graph."""

    def after_step(self, model: Any) -> None:
        """After each training step, outside of any graph."""

    def flush(self, model: Any) -> None:
        """Before validation, `evaluate`, `predict`, saving, at the end of `fit`, and after `train_on_batch`.

        When this returns nothing is under way, all that was computed has been applied, and every rank has the same
        weights. `state` of `begin` is averaged by the caller. May be called when nothing has happened since.
        """

    def note_progress(self, model: Any, variables: Sequence[Any]) -> None:
        """Before `begin`.

        Args:
            variables: those of which a group that joins later shall have the first rank's values.
        """

    def steps_apart(self, step: Any) -> Any:
        """What makes the training steps of a model where `apart` is set: an object with

        - `__call__(batch, single)`, which trains on a batch, or on a part of it, and returns the logs; `single`: the
          batch is none of an epoch;
        - `begin_epoch()`, `end_epoch()`, and `pass_over(count)`: so many batches of the epoch were drawn and left.

        Args:
            step: the `SharedStep` of the model.
        """
        raise NotImplementedError

    def pass_rows(self, adapter: Any, elements: Any, holding: Any, size: int, chosen: Any) -> Any:
        """A pipeline over arrays whose rows go from rank to rank while these train; None if they stay. Collective.

        Args:
            adapter: Keras' adapter of the arrays.
            elements: the arrays, nested as Keras has them.
            holding: which rows each rank holds, a `DataLayout` of patches.data.array_sharding.
            size: rows of a batch of all ranks.
            chosen: a `RowChoice`, which says which rows an epoch uses; None: all.
        """
        return None

    def end(self, model: Any) -> None:
        """After the last `flush` of a `fit`: nothing more will be asked for until the next `begin`."""
