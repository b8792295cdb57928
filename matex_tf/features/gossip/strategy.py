"""GossipGraD (arXiv 1803.05880): ranks train on their own rows, and average their weights with one partner at a time.

After a step with its own gradients each rank sends its weights w to one partner and receives those of another, v; whom,
that is said by `topology`. Both travel while the next step computes. When they are there, what that step has ended with
is moved by (v - w) / 2: so it is the average of the two, and what the step has done since. Senders and receivers are a
permutation of the ranks, so the moves of all ranks add up to nothing, and the mean over the ranks is what their
gradients make of it.

With a codec a rank sends how far w is from the weights that all ranks had when they were averaged last, encoded; what
holds then stands in `matex_tf.features.gossip.pairwise_average`.

Optimizers keep their slots to themselves. Statistics of the data (moving means and variances) travel with the weights.

The meetings themselves, also where a rank has died, stand in `rounds`.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matex_tf.errors import MatexError, SettingError
from matex_tf.settings import Settings, option
from matex_tf.strategies.base import Strategy

if TYPE_CHECKING:
    from matex_tf.features.gossip.rounds import Rounds
    from matex_tf.planning.cost_model import Cost
    from matex_tf.planning.step_cost import PlannedStep, StepCost


@dataclasses.dataclass(frozen=True)
class GossipOptions:
    """`--gossip-every` and the rest."""

    gossip_every: int = option(
        1,
        "Average the weights with a partner after every so many steps.",
        kind="positive",
    )
    gossip_sync: bool = option(
        False,
        "Whether a step ends only when the partner's weights are there. With `off` they travel while "
        "the next step computes.",
        kind="switch",
    )
    gossip_topology: str = option(
        "dissemination",
        "How partners are chosen. `dissemination` is for any number of ranks, `hypercube` for 2, 4, 8, … ranks.",
        choices=("dissemination", "hypercube"),
    )
    ring_shuffle: str = option(
        "auto",
        "Whether rows that a rank has trained on go to the next rank while it computes. `auto`: if each rank holds "
        "its own rows. `on`: also for arrays that every rank holds, so that each rank keeps a part of them. `off`: "
        "no. With `--faults shrink` rows stay where they are.",
        choices=("auto", "on", "off"),
    )


class Gossip(Strategy):
    """Each rank applies its own gradients, and meets one other rank after a step.

    Attributes:
        spreads: for each model, how far the ranks' weights were from their average when they were averaged last: root
            mean square over ranks, in parts of the weights' norm.
    """

    name = "gossip"
    text = "each rank applies its own gradients, and averages its weights with those of one other rank"
    price = "ranks learn from their own rows, and may need more steps to the same accuracy"
    changes = "ranks train on their own rows, and average their weights in pairs"
    line = "-."
    Options = GossipOptions
    options: GossipOptions
    rounded = "what ranks send of their weights is rounded"
    encodes_in_node = True
    averages_gradients = False
    replicas_identical = False
    only_in_fit = True

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self._variables: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._rounds: weakref.WeakKeyDictionary[Any, Rounds] = weakref.WeakKeyDictionary()
        self.spreads: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()

    @classmethod
    def check(cls, settings: Settings, ranks: int) -> None:
        if settings.faults == "restart":
            raise SettingError(
                "--strategy gossip cannot be started again from a checkpoint: that has the weights of one rank, and "
                "each has its own. Take --faults shrink, --faults abort, or --strategy sync."
            )
        if ranks:
            from matex_tf.features.gossip import topology

            kind = settings.of(GossipOptions).gossip_topology
            if not topology.fits(kind, ranks):
                raise SettingError(
                    f"--gossip-topology {kind} needs 2, 4, 8, … ranks, and here are {ranks}: take dissemination."
                )

    def predict(self, step: PlannedStep) -> StepCost:
        every, sent = self.options.gossip_every, step.message()
        average = step.nbytes * (step.codec.add if step.codec else step.machine.gamma)
        asynchronous = not self.options.gossip_sync
        seconds = step_seconds(step.compute, step.update, sent, average, every, asynchronous, step.machine.busy)
        return step.takes(seconds, sent * (1 / every), average / every)

    def begin(self, model: Any, trainable: Sequence[Any], state: Sequence[Any]) -> None:
        if model in self._rounds:  # of a fit, or of a first step, that did not come to its end
            self._rounds.pop(model).close()
        if not trainable:
            raise MatexError(
                f"{model.name} has no weights before its first step, and ranks could not gossip about them: call "
                "model.build(…) with the shape of its inputs before fit."
            )
        import tensorflow as tf

        from matex_tf.core import world
        from matex_tf.features.gossip.rounds import Rounds

        self._variables[model] = [v for v in (*trainable, *state) if tf.as_dtype(v.dtype).is_floating]
        if not world.current().is_single:
            self._rounds[model] = Rounds(self._variables[model], self.settings, alike=True)

    def after_step(self, model: Any) -> None:
        if model not in self._rounds:  # in `train_on_batch`, after a fit
            from matex_tf.core import world
            from matex_tf.features.gossip.rounds import Rounds

            if world.current().is_single:
                return
            self._rounds[model] = Rounds(self._variables[model], self.settings, alike=False)
        self._rounds[model].after_step()

    def flush(self, model: Any) -> None:
        if model in self._rounds:
            self.spreads[model] = self._rounds[model].flush()

    def pass_rows(self, adapter: Any, elements: Any, holding: Any, size: int, chosen: Any) -> Any:
        if self.options.ring_shuffle == "on" or (self.options.ring_shuffle == "auto" and holding.sharded):
            from matex_tf.features.gossip import ring_shuffle

            if not ring_shuffle.obstacle(elements, chosen):
                return ring_shuffle.pipeline(adapter, elements, holding, size)
        return None

    def end(self, model: Any) -> None:
        from matex_tf.core import world

        if model in self._rounds:
            self._rounds.pop(model).close()
            ranks = world.current()
            if ranks.rank == 0 and self.settings.notes:
                spread = f"{100 * self.spreads[model]:.2g} %"
                ranks.log(f"the weights of the ranks differed by {spread} when they were last averaged")


def step_seconds(
    compute: float, update: float, sent: Cost, average: float, every: int = 1, asynchronous: bool = True,
    busy: bool = False,
) -> float:  # fmt: skip
    """GossipGraD (arXiv 1803.05880), a step on average; the number of ranks is not in it.

    Args:
        sent: one message, see `cost_model.message`.
        average: seconds to average with what came.
        every: steps from one message to the next.
        asynchronous: whether a message travels during the steps up to the next one.
        busy: see `cost_model.Machine`.
    """
    own = compute + update + average / every
    if not asynchronous:
        return own + sent.seconds / every
    return max(own + (sent.work / every if busy else 0.0), sent.seconds / every)
