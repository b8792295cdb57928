"""`hvd.elastic`: states that can be committed and restored, and functions that run on them.

Under `--faults shrink` a function that `run` was given is a transaction (see `transactions`): where a rank dies in
it the others leave it behind, go back to their last commit, take over that of the lowest rank that is left, and call
the function again. Under `--faults restart` commits are written, see `commits`. In other jobs it is called once, and a
rank that dies ends them all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from matex_tf.core import world
from matex_tf.errors import RankLost
from matex_tf.features.horovod.names.callbacks import shared_variables
from matex_tf.features.horovod.names.core import basics, commits, functions, unsupported
from matex_tf.features.horovod.names.core.exceptions import HorovodInternalError
from matex_tf.features.horovod.names.optimizers.which_keras import keras


class State:
    """What a function under `run` works on. Subclasses say what is saved, restored and brought to other ranks.

    Args:
        bcast_object: gives every rank an object of rank 0.
        get_rank: this rank.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]):
        self._bcast_object, self._rank = bcast_object, get_rank
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Have functions called after the ranks have changed."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The ranks have changed."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: Any, update_res: Any) -> None:
        """The hosts of the job have changed; never so here.

        Args:
            timestamp: with Horovod, when that was.
            update_res: with Horovod, whether hosts were added or removed.
        """

    def commit(self) -> None:
        """Save, and see whether hosts have changed."""
        self.save()
        commits.committed(self)
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """See whether hosts have changed; never so here."""

    def save(self) -> None:
        """Keep what there is now."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to what was kept."""
        raise NotImplementedError

    def sync(self) -> None:
        """Bring rank 0's to every rank."""
        raise NotImplementedError

    def reset(self) -> None:
        """Make ready for other ranks."""


class ObjectState(State):
    """A state of Python objects, each an attribute.

    Args:
        bcast_object, get_rank: see `State`.
        kwargs: the objects, by name.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any):
        self._saved_state = kwargs
        self._set_attributes()
        super().__init__(bcast_object, get_rank)

    def save(self) -> None:
        """Keep the objects."""
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        """Go back to the objects that were kept."""
        self._set_attributes()

    def sync(self) -> None:
        """Bring rank 0's objects to every rank."""
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
            self._set_attributes()

    def given(self) -> tuple[list[tf.Tensor], dict[str, Any]]:
        """What was kept last: values of variables, and objects."""
        return [], self._saved_state

    def make_variables(self) -> None:
        """Have all variables that a step makes."""

    def take(self, values: list[Any], objects: dict[str, Any]) -> str | None:
        """Be as `given` was in an earlier job; returns what is different from it, in words, or None.

        Args:
            values: arrays, of the variables; here there are none.
            objects: by name.
        """
        if objects.keys() != self._saved_state.keys():
            return f"it has {sorted(self._saved_state)}, and had {sorted(objects)}"
        self._saved_state = objects
        self._set_attributes()
        return None

    def _set_attributes(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


class _Variables(ObjectState):
    """A state that has variables as well."""

    def __init__(self, **kwargs: Any):
        self._values: list[Any] = []
        self._keep()
        super().__init__(functions.broadcast_object, basics.rank, **kwargs)

    def _variables(self) -> list[Any]:
        raise NotImplementedError

    def _keep(self) -> None:
        self._values = [tf.identity(variable) for variable in functions.own_variables(self._variables())]

    def save(self) -> None:
        """Keep the variables and the objects."""
        self._keep()
        super().save()

    def restore(self) -> None:
        """Go back to what was kept; variables that came later stay."""
        for variable, value in zip(functions.own_variables(self._variables()), self._values, strict=False):
            variable.assign(value)
        super().restore()

    def given(self) -> tuple[list[tf.Tensor], dict[str, Any]]:
        """What was kept last: values of variables, and objects."""
        return self._values, self._saved_state

    def take(self, values: list[Any], objects: dict[str, Any]) -> str | None:
        """Be as `given` was in an earlier job; or what is different."""
        variables = functions.own_variables(self._variables())
        shapes, known = [value.shape for value in values], [tuple(variable.shape) for variable in variables]
        if shapes != known:
            return f"its {len(known)} variables have other shapes than the {len(shapes)} that it had"
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        self._keep()
        return super().take(values, objects)

    def sync(self) -> None:
        """Bring rank 0's variables and objects to every rank."""
        functions.broadcast_variables(self._variables(), 0)
        self._keep()
        super().sync()


class TensorFlowKerasState(_Variables):
    """A state of a Keras model and its optimizer.

    Args:
        model: built.
        optimizer: the model's own where it is None.
        backend: taken and ignored.
        kwargs: more objects, by name.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any):
        if not getattr(model, "built", True):
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model, self.optimizer, self.backend = model, optimizer or model.optimizer, backend
        super().__init__(**kwargs)

    def make_variables(self) -> None:
        """Have the variables of the optimizer."""
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.model.trainable_variables)

    def _variables(self) -> list[Any]:
        own = self.optimizer.variables if self.optimizer is not None else []
        both = [*shared_variables(self.model.variables), *own]
        return list({id(variable): variable for variable in both}.values())


class KerasState(TensorFlowKerasState):
    """The state of a model of Keras, see `TensorFlowKerasState`."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any):
        super().__init__(model, optimizer=optimizer, **kwargs)


class TensorFlowState(_Variables):
    """A state of TensorFlow variables.

    Args:
        variables: of TensorFlow or Keras.
        session: refused; there is eager execution only.
        kwargs: more objects, by name.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any):
        if session is not None or variables is None:
            raise ValueError("TensorFlowState takes a list of variables, and no session.")
        self.variables = list(variables)
        super().__init__(**kwargs)

    def _variables(self) -> list[Any]:
        return self.variables


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """A function that first brings its state, the first argument, to what it is on rank 0.

    Under `--faults shrink` it is called again, after `state.restore()` and `state.on_reset()`, where a rank has died or
    where it raised `HorovodInternalError`. Under `--faults restart` it goes on from the last commit that was written.

    Args:
        func: takes a `State`, and more.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        def call() -> Any:
            state.sync()
            return func(state, *args, **kwargs)

        ranks = world.current()
        commits.begin(state)
        if ranks.guard is None:
            return call()

        def attempt() -> Any:
            try:
                return call()
            except HorovodInternalError as error:
                raise RankLost(str(error)) from error

        def undo() -> None:
            basics.reinit()
            state.restore()
            state.on_reset()

        ranks.guard.shares_batches = False
        return ranks.guard.transaction(attempt, lambda: ranks.barrier("end an elastic function"), undo)[0]

    return wrapper


run_fn = run


class CommitStateCallback(keras.callbacks.Callback):
    """Commits a state every so many batches, and at the end of each epoch.

    Args:
        state: what is committed.
        batches_per_commit: how many batches.
    """

    def __init__(self, state: State, batches_per_commit: int = 1):
        super().__init__()
        self.state, self.batches_per_commit, self.batches_remaining = state, batches_per_commit, batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Count from the start."""
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count, and commit. Args: see `keras.callbacks.Callback`; not needed."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.state.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit. Args: see `keras.callbacks.Callback`; not needed."""
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps the number of the batch in `state.batch`, 0 at the end of an epoch."""

    def __init__(self, state: Any):
        super().__init__()
        self.state, self.steps_per_epoch = state, None

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note the batch.

        Args:
            batch: from 0 in each epoch.
            logs: not needed.
        """
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Begin anew. Args: see `keras.callbacks.Callback`; not needed."""
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps the number of epochs that are done in `state.epoch`, those of an earlier `fit` among them."""

    def __init__(self, state: Any):
        super().__init__()
        self.state, self.initial_epoch = state, state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Note where we are."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note how many epochs are done.

        Args:
            epoch: from 0 in each `fit`.
            logs: not needed.
        """
        self.state.epoch = self.initial_epoch + epoch + 1


if not TYPE_CHECKING:  # or every name would be taken for one of these

    def __getattr__(name: str) -> Any:
        unsupported.raise_unsupported("horovod.tensorflow.elastic", name, globals())
