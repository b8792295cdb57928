"""Variables and Python objects, from one rank to all or from all to all; ranks and their numbers as tensors."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf.errors import MatexError
from matex_tf.features.horovod.names.core import basics, ops
from matex_tf.features.horovod.names.core.process_sets import ProcessSet, by_id, global_process_set
from matex_tf.features.horovod.names.core.requests import Call


def own_variables(variables: Iterable[Any]) -> list[tf.Variable]:
    """TensorFlow's variables of Keras' or TensorFlow's."""
    return [variable if isinstance(variable, tf.Variable) else variable.value for variable in variables]


@ops.as_it_is
def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Give the variables of every rank the values of `root_rank`.

    Args:
        variables: of Keras or of TensorFlow, the same on every rank.
        root_rank: among all ranks.
        process_set: the ranks that take part.
        inplace: taken and ignored; the values travel together in any case.

    Returns:
        In the graph of a session, the op that does it; None where it is done at once.
    """
    given = list(variables)
    targets = own_variables(given)
    labels = [str(getattr(variable, "path", variable.name)) for variable in given]
    name = None if tf.executing_eagerly() or tf.inside_function() else "broadcast_variables"
    values = [tf.convert_to_tensor(target) for target in targets]
    results = ops.broadcast(values, root_rank, name, process_set, labels)
    assigned = [target.assign(result) for target, result in zip(targets, results, strict=True)]
    return None if tf.executing_eagerly() else tf.group(*assigned)


@ops.as_it_is
def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[tf.Tensor]:
    """Give the variables of every rank the values of `root_rank`; returns the values.

    Args:
        variables: of Keras or of TensorFlow, in the same order on every rank.
        root_rank: among all ranks.
        name: by which ranks find one another; None is enough where all make the same calls in one order, or the same
            graph.
        process_set: the ranks that take part.
    """
    targets = own_variables(variables)
    values = [tf.convert_to_tensor(target) for target in targets]
    results = ops.broadcast(values, root_rank, name, process_set)
    with tf.control_dependencies([target.assign(result) for target, result in zip(targets, results, strict=True)]):
        return [tf.identity(result) for result in results]


def broadcast_global_variables(root_rank: int) -> Any:
    """The op that gives all variables of the default graph the values of `root_rank`; for sessions.

    Raises:
        RuntimeError: TensorFlow executes eagerly.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. "
            "Please use `hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives all variables the values of `root_rank` once the session has made them.

    Args:
        root_rank: among all ranks.
        device: taken and ignored; Horovod broadcasts on it.
    """

    def __init__(self, root_rank: int, device: str = ""):
        super().__init__()
        self.root_rank, self.device, self.bcast_op = root_rank, device, None

    def begin(self) -> None:
        """Make the op."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the op.

        Args:
            session: just made; its variables are initialized.
            coord: of its threads; not needed.
        """
        session.run(self.bcast_op)


def _pickler() -> Any:
    """cloudpickle, which takes functions too, where it is installed; else pickle."""
    return importlib.import_module("cloudpickle") if importlib.util.find_spec("cloudpickle") else pickle


def broadcast_object(
    obj: Any, root_rank: int = 0, session: Any = None, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """`root_rank`'s object on every rank.

    Args:
        obj: any object that can be pickled, or by cloudpickle if that is installed; of other ranks it is not looked at.
        root_rank: among all ranks.
        session: taken and ignored; Horovod runs its op in it.
        name: by which ranks find one another; None is enough where all make the same calls in one order.
        process_set: the ranks that take part.

    Raises:
        MatexError: on every rank; the object cannot be pickled.
    """
    coordinator = process_set.coordinator
    root = process_set.ranks.index(root_rank)
    mine, failure = b"", ""
    if coordinator.ranks.rank == root:
        mine, failure = _pickled(obj)
    data, failure = coordinator.perform(Call("broadcast_object", name, root=root), objects=[(mine, failure)])
    if failure:
        raise MatexError(f"hvd.broadcast_object: rank {root_rank} {failure}")
    return obj if coordinator.ranks.rank == root else pickle.loads(data)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """A function that gives every rank the object that `root_rank` calls it with. Args: see `broadcast_object`."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Every rank's object, in the order of ranks.

    Args:
        obj: any object that can be pickled, or by cloudpickle if that is installed.
        session: taken and ignored; Horovod runs its ops in it.
        name: by which ranks find one another; None is enough where all make the same calls in one order.
        process_set: the ranks that take part.

    Raises:
        MatexError: on every rank; an object cannot be pickled.
    """
    gathered = process_set.coordinator.perform(Call("allgather_object", name), objects=[_pickled(obj)])
    for rank, (_, failure) in zip(process_set.ranks, gathered, strict=True):
        if failure:
            raise MatexError(f"hvd.allgather_object: rank {rank} {failure}")
    return [pickle.loads(data) for data, _ in gathered]


def _pickled(obj: Any) -> tuple[bytes, str]:
    """The object's bytes, or why it has none: so that the other ranks hear of it and do not wait."""
    try:
        return _pickler().dumps(obj), ""
    except Exception as error:
        return b"", f"cannot pickle its {type(obj).__name__}: {error}"


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """int32 scalar, the number of ranks when it is run.

    Args:
        process_set_id: of the set whose ranks are counted; 0 for all ranks.
        name: taken and ignored; with Horovod that of the op.
    """
    return ops.value(lambda: np.array(len(by_id(process_set_id).ranks), np.int32))


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """int32 scalar, 1 where this rank is in a set, 0 where not; -1 before `init`, -3 where there is no such set.

    Args:
        process_set_id: of the set; 0 is that of all ranks.
        name: taken and ignored; with Horovod that of the op.
    """

    def included() -> np.ndarray:
        if not basics.is_initialized():
            return np.array(-1, np.int32)
        process_set = by_id(process_set_id)
        return np.array(-3 if process_set is None else int(process_set.included()), np.int32)

    return ops.value(included)


def rank_op(name: str | None = None) -> tf.Tensor:
    """int32 scalar, this rank when it is run."""
    return ops.value(lambda: np.array(basics.rank(), np.int32))


def local_size_op(name: str | None = None) -> tf.Tensor:
    """int32 scalar, the number of ranks on this node when it is run."""
    return ops.value(lambda: np.array(basics.local_size(), np.int32))


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """int32 scalar, this rank among those of its node when it is run."""
    return ops.value(lambda: np.array(basics.local_rank(), np.int32))
