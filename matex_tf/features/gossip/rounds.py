"""The meetings of `gossip`: what a rank sends and receives after a step, and how weights are moved by it.

Where a rank has died (`transactions`) all that are left drop what was under way, and begin anew with partners that
follow from their number. For that each step ends in a collective, as with any strategy, so that all of them have done
the same steps; and ranks meet before they wait for one another's weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from matex_tf.core import trace, world
from matex_tf.core.waiting import StallDetector
from matex_tf.errors import RankLost, RanksDisagree
from matex_tf.exchange import bucket
from matex_tf.exchange.network.messenger import Messenger
from matex_tf.features.gossip.pairwise_average import PairwiseAverager
from matex_tf.features.gossip.strategy import GossipOptions
from matex_tf.features.gossip.topology import Partners, fits
from matex_tf.settings import Settings
from matex_tf.strategies.base import held_by, path_of


class Rounds:
    """The meetings about one model, in one `fit`."""

    def __init__(self, variables: Sequence[Any], settings: Settings, alike: bool):
        """Begin them. Collective.

        Args:
            variables: of Keras, of floating point.
            alike: whether all ranks have the same values of them now. If not, what a codec encodes is the values
                themselves, until they have been averaged.
        """
        import tensorflow as tf

        self.variables = list(variables)
        self._settings, self._options = settings, settings.of(GossipOptions)
        self._read = tf.function(self._read_weights, autograph=False)
        self._move = tf.function(self._move_weights, autograph=False)
        self._open()
        if alike and settings.codec != "none":
            self.averager.refer([np.asarray(variable.numpy()) for variable in variables])

    def _open(self) -> None:
        """Meet among the ranks that there are, from the first step on. Collective."""
        import tensorflow as tf

        ranks, settings = world.current(), self._settings
        self._messenger = Messenger(ranks.split_all())
        # Where ranks may die, they are found to be missing where all meet.
        end_after = 0 if ranks.guard else settings.stall_abort_seconds
        stalls = StallDetector(settings.stall_seconds, end_after, ranks.log)
        kind = self._options.gossip_topology
        if not fits(kind, ranks.size):  # the ranks that are left of a hypercube may be none any more
            kind = "dissemination"
        self.averager = PairwiseAverager(
            self._messenger,
            ranks.rank,
            Partners(ranks.size, max(0, settings.seed), kind),
            [tuple(variable.shape) for variable in self.variables],
            [np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype) for variable in self.variables],
            settings.bucket_mb * bucket.MEGABYTE,
            lambda partners, seconds: stalls.check(partners, seconds, "gossip"),
            settings.codec,
            settings.error_feedback,
        )
        self._steps, self._generation = 0, ranks.generation

    def after_step(self) -> None:
        """Meet, where it is time for it."""
        self._without_the_dead()
        self._steps += 1
        if self._steps % self._options.gossip_every or world.current().is_single:
            return
        self._all_here()
        if self._options.gossip_sync:
            self._begin()
            self._finish()
        elif self.averager.under_way and world.current().guard is None:
            self._turn()
        else:  # where a rank may die in between, no part of the weights is moved before all can be
            self._finish()
            self._begin()

    def flush(self) -> float:
        """Take in what is under way, and give all ranks the average of their weights, the same bits. Collective.

        Returns:
            How far they were from it; see `Gossip.spreads`.
        """

        def averages() -> tuple[list[np.ndarray], float]:
            self._without_the_dead()
            self._rest()
            return average(self.variables)

        ranks = world.current()
        if ranks.guard is None:
            means, spread = averages()
        else:  # what is sent to a late rank is the end of a meeting, and not all weights
            means, spread = ranks.guard.transaction(averages, lambda: ranks.barrier("have averaged weights"))[0]
        for variable, mean in zip(self.variables, means, strict=True):
            variable.assign(mean)
        self.averager.refer(means)
        return spread

    def close(self) -> None:
        """Give memory, thread and communicator back; after `flush`."""
        if world.current().guard is not None:  # giving it back is collective, and a rank may have died
            self._messenger.abandon()
        else:
            self._messenger.close()

    def _without_the_dead(self) -> None:
        """Where ranks have died, drop what is under way, as all others do, and begin anew. Collective."""
        if self._generation != world.current().generation:
            reference = self.averager.reference
            self._messenger.abandon()
            self._open()
            self.averager.refer(reference)

    def _all_here(self) -> None:
        """Where ranks may die, wait for all of them: then nobody waits for weights of one that has not come, and so is
        not taken for missing by the others."""
        ranks = world.current()
        if ranks.guard is not None:
            ranks.barrier("gossip")

    def _rest(self) -> None:
        """Take in what is under way, and hear that the next partner has stopped as well."""
        if world.current().is_single:
            return
        self._all_here()
        self._finish()
        with trace.span("wait", "gossip"), _of_the_dead():
            self.averager.stop()

    def _begin(self) -> None:
        self.averager.greet()
        for part in range(len(self.averager.parts)):
            self._send(part)

    def _finish(self) -> None:
        if not self.averager.under_way:
            return
        with trace.span("wait", "gossip"), _of_the_dead():
            self.averager.finish()
        for part in range(len(self.averager.parts)):
            self._apply(part)

    def _turn(self) -> None:
        """Finish, and begin anew, a part at a time."""
        with trace.span("wait", "gossip"):
            parts = self.averager.turn()
        while True:
            with trace.span("wait", "gossip"):
                part = next(parts, None)
            if part is None:
                return
            self._apply(part)
            self._send(part)

    def _send(self, part: int) -> None:
        with trace.span("pack", "gossip"):
            self._read(part)

    def _apply(self, part: int) -> None:
        with trace.span("apply", "gossip"):
            self._move(part)

    def _read_weights(self, part: int) -> None:
        import tensorflow as tf

        def send(*values: np.ndarray) -> np.ndarray:
            self.averager.send(part, values)
            return np.array(0, np.int32)

        tf.numpy_function(send, [tf.convert_to_tensor(held_by(v)) for v in self._of(part)], tf.int32, stateful=True)

    def _of(self, part: int) -> list[Any]:
        return [self.variables[member] for member in self.averager.parts[part]]

    def _move_weights(self, part: int) -> None:
        import tensorflow as tf

        variables, members = self._of(part), self.averager.parts[part]
        dtypes = [tf.as_dtype(variable.dtype) for variable in variables]
        moves = tf.numpy_function(lambda: [self.averager.moves[one] for one in members], [], dtypes, stateful=True)
        for variable, move in zip(variables, moves, strict=True):
            move.set_shape(variable.shape)
            # In place where Keras shows TensorFlow's own variable.
            own = held_by(variable)
            (own if isinstance(own, tf.Variable) else variable).assign_add(move)


@contextlib.contextmanager
def _of_the_dead() -> Iterator[None]:
    """Where ranks may die they have just met: a partner that is elsewhere has left half a message when it died."""
    try:
        yield
    except RanksDisagree as error:
        if world.current().guard is None:
            raise
        raise RankLost(str(error)) from error


def average(variables: Sequence[Any]) -> tuple[list[np.ndarray], float]:
    """The average over all ranks of these variables, the same bits on each. Collective.

    Returns:
        Arrays of the variables' shapes and dtypes; and how far the ranks were from them, see `Gossip.spreads`.
    """
    ranks = world.current()
    ranks.barrier("average weights", [f"{path_of(v)} {v.dtype} {tuple(v.shape)}" for v in variables])
    means: list[np.ndarray] = []
    apart = whole = 0.0
    for variable in variables:
        own = np.asarray(variable.numpy())
        mean = own.astype(np.float64).reshape(-1) / ranks.size
        ranks.allreduce_in_place(mean)
        apart += float(((own.reshape(-1) - mean) ** 2).sum())
        whole += float((mean**2).sum())
        means.append(mean.reshape(own.shape).astype(own.dtype))
    everyone = ranks.allgather(apart, "say how far apart weights were")
    return means, float(np.sqrt(np.mean(everyone) / whole)) if whole else 0.0
