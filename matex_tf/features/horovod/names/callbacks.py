"""Horovod's callbacks, for the Keras of the script.

Relies on (Keras 3.3 to 3.15, tf_keras 2.16 to 2.21): `Optimizer.learning_rate`, public; `SGD.momentums`, and in legacy
optimizers `get_slot` and `get_slot_names`, not documented; `ModelCheckpoint._save_model(epoch, batch, logs)`, private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from matex_tf.features.horovod.names.core import basics, functions, ops, unsupported
from matex_tf.features.horovod.names.optimizers.which_keras import IS_2, keras
from matex_tf.patches.common import keras_lines, seeds


def shared_variables(variables: Iterable[Any]) -> list[Any]:
    """The variables that ranks have in common: all but the states of random number generators."""
    return [variable for variable in variables if not seeds.is_generator_state(variable)]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives the variables of the model and the optimizer `root_rank`'s values after the first batch.

    Args:
        root_rank: whose values.
        device: taken and ignored.
        local_variables: a variable, or several, that stay the rank's own.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None):
        super().__init__()
        self.root_rank, self.device, self.broadcast_done = root_rank, device, False
        kinds = (tf.Variable,) if IS_2 else (tf.Variable, keras.Variable)
        given = [] if local_variables is None else local_variables
        given = [given] if isinstance(given, kinds) else list(given)
        if not all(isinstance(variable, kinds) for variable in given):
            raise ValueError("All local variables must be of tf.Variable type.")
        self._local = {id(variable) for variable in given}

    def register_local_var(self, var: Any) -> None:
        """Leave this variable to the rank."""
        self._local.add(id(var))

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast, after the first batch of all. Args: see `keras.callbacks.Callback`; not needed."""
        if self.broadcast_done:
            return
        both = [*shared_variables(self.model.variables), *keras_lines.optimizer_variables(self.model.optimizer)]
        unique = {id(variable): variable for variable in both if id(variable) not in self._local}
        functions.broadcast_variables(unique.values(), self.root_rank)
        self.broadcast_done = True


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the logs of an epoch over the ranks, in place. Must stand before callbacks that read them.

    Args:
        device: taken and ignored.
    """

    def __init__(self, device: str = ""):
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the logs over the ranks.

        Args:
            epoch: not needed.
            logs: numbers by name, the same names on every rank; those that are arrays are averaged to one number first.
                They are changed in place.
        """
        if not logs:
            return
        names = sorted(logs)
        values = [tf.constant(float(np.mean(logs[name])), tf.float64) for name in names]
        for name, mean in zip(names, ops.allreduce(values, basics.Average, labels=names), strict=True):
            logs[name] = float(mean)


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr * multiplier` from `start_epoch` until `end_epoch`.

    Args:
        initial_lr: what is multiplied.
        multiplier: a number, whose power by the epochs since `start_epoch` is taken, or a function of the epoch.
        start_epoch, end_epoch: the first epoch, and the first after them; None for no end.
        staircase: whether the rate changes once an epoch, and not with each batch (the function then gets fractions).
        momentum_correction: whether momentum that was gathered at the old rate is scaled to the new one (arXiv
            1706.02677, section 2.1): the slots of SGD are multiplied by new / old, which is what multiplying its
            momentum for one step does.
        steps_per_epoch: batches of an epoch, where Keras does not know them.
    """

    def __init__(
        self, initial_lr: float, multiplier: Any, start_epoch: int = 0, end_epoch: int | None = None,
        staircase: bool = True, momentum_correction: bool = True, steps_per_epoch: int | None = None,
    ):  # fmt: skip
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.staircase, self.momentum_correction, self.steps_per_epoch = staircase, momentum_correction, steps_per_epoch
        self.current_epoch = 0
        self.multiplier: Callable[[float], float] = (
            multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)
        )

    @property
    def _optimizer(self) -> Any:
        return getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)

    @property
    def _rate(self) -> float:
        return float(np.asarray(self._optimizer.learning_rate))  # variables of Keras 3.3 and 3.4 have no __float__

    def on_train_begin(self, logs: Any = None) -> None:
        """See how many batches an epoch has."""
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    "Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch parameter "
                    f"to the {type(self).__name__}()."
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Take note of the epoch.

        Args:
            epoch: as `fit` counts it, from 0 or from its `initial_epoch`.
            logs: not needed.
        """
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate of the batch.

        Args:
            batch: from 0 in each epoch; with `staircase` the rate is set at 0 alone.
            logs: not needed.
        """
        if self.current_epoch < self.start_epoch or (
            self.end_epoch is not None and self.current_epoch >= self.end_epoch
        ):
            return
        if not self.staircase:
            self._adjust(self.current_epoch + batch / float(self.steps_per_epoch or 1))
        elif batch == 0:
            self._adjust(self.current_epoch)

    def _adjust(self, epoch: float) -> None:
        old, new = self._rate, self.initial_lr * self.multiplier(epoch)
        self._optimizer.learning_rate = new
        if self.momentum_correction and old and new != old and getattr(self._optimizer, "momentum", 0):
            for slot in self._momentums():
                slot.assign(slot * (new / old))

    def _momentums(self) -> list[Any]:
        optimizer = self._optimizer
        if hasattr(optimizer, "get_slot_names"):
            names = [name for name in optimizer.get_slot_names() if name == "momentum"]
            return [optimizer.get_slot(variable, name) for name in names for variable in self.model.trainable_weights]
        return list(getattr(optimizer, "momentums", None) or [])

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Put the rate into the logs, as `lr`.

        Args:
            epoch: not needed.
            logs: changed in place; None for none.
        """
        if logs is not None:
            logs["lr"] = self._rate


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr / size` to `initial_lr` (arXiv 1706.02677, section 2.2).

    Args:
        initial_lr: the rate at the end.
        warmup_epochs: epochs until then.
        momentum_correction, steps_per_epoch: see `LearningRateScheduleCallback`.
        verbose: 1 prints a line when it is done.
    """

    def __init__(
        self, initial_lr: float, warmup_epochs: int = 5, momentum_correction: bool = True,
        steps_per_epoch: int | None = None, verbose: int = 0,
    ):  # fmt: skip
        def multiplier(epoch: float) -> float:
            epoch += 1.0 / float(self.steps_per_epoch or 1)  # whole numbers at the end of epochs
            return 1.0 / basics.size() * (epoch * (basics.size() - 1) / warmup_epochs + 1)

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Put the rate into the logs, and say when it has reached its end. Args: see `LearningRateScheduleCallback`."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0 and basics.rank() == 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate:g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """`keras.callbacks.ModelCheckpoint` of the best model; `filepath` may be set later.

    Args:
        monitor, verbose, save_weights_only, mode, save_freq: see `keras.callbacks.ModelCheckpoint`.
        filepath: where to; None until it is set.
    """

    def __init__(
        self, monitor: str = "val_loss", verbose: int = 0, save_weights_only: bool = False, mode: str = "auto",
        save_freq: Any = "epoch", filepath: Any = None,
    ):  # fmt: skip
        ending = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(
            filepath if filepath is not None else f"best{ending}", monitor=monitor, verbose=verbose,
            save_best_only=True, save_weights_only=save_weights_only, mode=mode, save_freq=save_freq,
        )  # fmt: skip
        self.filepath = filepath

    def _save_model(self, epoch: int, batch: Any, logs: Any) -> None:
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint does not know where to: set its filepath before fit.")
        super()._save_model(epoch, batch, logs)


if not TYPE_CHECKING:  # or every name would be taken for one of these

    def __getattr__(name: str) -> Any:
        unsupported.raise_unsupported("horovod.keras.callbacks", name, globals())
