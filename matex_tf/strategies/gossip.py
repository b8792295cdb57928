"""GossipGraD (arXiv 1803.05880): ranks train on their own rows, and average their weights with one partner at a time.

After a step with its own gradients each rank sends its weights w to one partner and receives those of another, v; whom,
that is said by `partners`. Both travel while the next step computes. When they are there, what that step has ended with
is moved by (v - w) / 2: so it is the average of the two, and what the step has done since. Senders and receivers are a
permutation of the ranks, so the moves of all ranks add up to nothing, and the mean over the ranks is what their
gradients make of it.

With a codec a rank sends how far w is from the weights that all ranks had when they were averaged last, encoded; what
holds then stands in `matex_tf.exchange.halfway`.

Optimizers keep their slots to themselves. Statistics of the data (moving means and variances) travel with the weights.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings, trace, world
from matex_tf.errors import MatexError
from matex_tf.exchange import plan
from matex_tf.exchange.halfway import Halfway, Patience
from matex_tf.exchange.mail import Mail
from matex_tf.strategies.partners import Partners
from matex_tf.strategies.strategy import Strategy


class Gossip(Strategy):
    """Each rank applies its own gradients, and meets one other rank after a step.

    Attributes:
        spreads: for each model, how far the ranks' weights were from their average when they were averaged last: root
            mean square over ranks, in parts of the weights' norm.
    """

    name = "gossip"
    averages = False
    keeps_alike = False
    only_in_fit = True

    def __init__(self, told: settings.Settings):
        super().__init__(told)
        self._rounds: weakref.WeakKeyDictionary[Any, Rounds] = weakref.WeakKeyDictionary()
        self.spreads: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()

    @property
    def note(self) -> str:
        every = self.told.gossip_every
        when = "after each step" if every == 1 else f"after every {every} steps"
        how = ", and waits for them" if self.told.gossip_sync else "; they travel during the next step"
        return (
            f"each rank applies the gradients of its own rows, and averages its weights with those of one other rank "
            f"{when}{how}. All ranks average theirs before validation, evaluate, predict, saving and the end of fit"
        )

    def begin(self, model: Any, trainable: Sequence[Any], state: Sequence[Any]) -> None:
        self.end(model)
        if not trainable:
            raise MatexError(
                f"{model.name} has no weights before its first step, and ranks could not gossip about them: call "
                "model.build(…) with the shape of its inputs before fit."
            )
        if not world.current().alone:
            floating = [v for v in (*trainable, *state) if tf.as_dtype(v.dtype).is_floating]
            self._rounds[model] = Rounds(floating, self.told)

    def after_step(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds[model].after_step()

    def settle(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds[model].rest()
            self.spreads[model] = average(self._rounds[model].variables)
            self._rounds[model].refer()

    def end(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds.pop(model).close()
            ranks = world.current()
            if ranks.rank == 0 and self.told.notes:
                apart = f"{100 * self.spreads[model]:.2g} % apart"
                ranks.say(f"before they were averaged the last time, the weights of the ranks were {apart}")


class Rounds:
    """The meetings about one model, in one `fit`."""

    def __init__(self, variables: Sequence[Any], told: settings.Settings):
        """Begin them. Collective.

        Args:
            variables: of Keras, of floating point, alike on all ranks.
        """
        ranks = world.current()
        self.variables = list(variables)
        self._told = told
        self._steps = 0
        self._mail = Mail(ranks.split(0, ranks.rank))
        self.halfway = Halfway(
            self._mail,
            ranks.rank,
            Partners(ranks.size, max(0, told.seed), told.gossip_topology),
            [tuple(variable.shape) for variable in variables],
            [np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype) for variable in variables],
            told.bucket_mb * plan.MEGABYTE,
            Patience(told.stall_seconds, told.stall_abort_seconds, ranks.say).look,
            told.codec,
            told.error_feedback,
        )
        self.refer()
        self._read = tf.function(self._read_weights, autograph=False)
        self._move = tf.function(self._move_weights, autograph=False)

    def after_step(self) -> None:
        """Meet, where it is time for it."""
        self._steps += 1
        if self._steps % self._told.gossip_every:
            return
        if self._told.gossip_sync:
            self._begin()
            self._finish()
        else:
            self._finish()
            self._begin()

    def rest(self) -> None:
        """Take in what is under way, and hear that the next partner has stopped as well."""
        self._finish()
        with trace.span("wait", "gossip"):
            self.halfway.stop()

    def refer(self) -> None:
        """With a codec, send how far weights are from what they are now; to be called where all ranks have the same."""
        if self._told.codec != "none":
            self.halfway.refer([np.asarray(variable.numpy()) for variable in self.variables])

    def close(self) -> None:
        """Give memory, thread and communicator back; after `rest`."""
        self._mail.close()

    def _begin(self) -> None:
        with trace.span("pack", "gossip"):
            self._read()

    def _finish(self) -> None:
        if not self.halfway.under_way:
            return
        with trace.span("wait", "gossip"):
            self.halfway.finish()
        with trace.span("apply", "gossip"):
            self._move()

    def _read_weights(self) -> None:
        def begin(*values: np.ndarray) -> np.ndarray:
            self.halfway.begin(values)
            return np.array(0, np.int32)

        tf.numpy_function(begin, [tf.convert_to_tensor(v.value) for v in self.variables], tf.int32, stateful=True)

    def _move_weights(self) -> None:
        dtypes = [tf.as_dtype(variable.dtype) for variable in self.variables]
        moves = tf.numpy_function(lambda: self.halfway.moves, [], dtypes, stateful=True)
        for variable, move in zip(self.variables, moves, strict=True):
            move.set_shape(variable.shape)
            # In place where Keras shows TensorFlow's own variable.
            (variable.value if isinstance(variable.value, tf.Variable) else variable).assign_add(move)


def average(variables: Sequence[Any]) -> float:
    """Give all ranks the average of these variables, the same bits on each. Collective.

    Returns:
        How far they were from it; see `Gossip.spreads`.
    """
    ranks = world.current()
    ranks.meet("average weights", [f"{v.path} {v.dtype} {tuple(v.shape)}" for v in variables])
    apart = whole = 0.0
    for variable in variables:
        own = np.asarray(variable.numpy())
        mean = own.astype(np.float64).reshape(-1) / ranks.size
        ranks.sum_in_place(mean)
        apart += float(((own.reshape(-1) - mean) ** 2).sum())
        whole += float((mean**2).sum())
        variable.assign(mean.reshape(own.shape).astype(own.dtype))
    everyone = ranks.gather(apart, "say how far apart weights were")
    return float(np.sqrt(np.mean(everyone) / whole)) if whole else 0.0
