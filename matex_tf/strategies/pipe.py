"""Pipe-SGD (Li et al., NeurIPS 2018, arXiv 1811.03619, Algorithm 1): gradients travel while the next steps compute.

With a pipe of width K, step t computes the gradient g_t of the weights w_t and sends it on its way, then applies the
averaged gradient of K - 1 steps before, which has travelled meanwhile:

    w_(t+1) = w_t - rate * g_(t-K+1)        and w_(t+1) = w_t in the first K - 1 steps

K = 1 is sync. When the pipe is flushed, what is under way is waited for and applied, oldest first.

Unlike the paper's, a step computes its gradient at the weights that are predicted for the time at which it is applied,
see predicted_weights.py. `--pipe-predict off` is Algorithm 1 as it stands.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from matex_tf.errors import SettingError
from matex_tf.settings import Settings, option
from matex_tf.strategies.base import Gradient, Update
from matex_tf.strategies.sync import WHAT, Sync

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from matex_tf.core.world import World
    from matex_tf.exchange.async_allreduce import PendingAllreduce
    from matex_tf.planning.cost_model import Cost
    from matex_tf.planning.step_cost import PlannedStep, StepCost
    from matex_tf.strategies.predicted_weights import PredictedWeights

Apply = Callable[[Sequence[Any]], None]


@dataclasses.dataclass(frozen=True)
class PipeOptions:
    """`--pipe-width` and the rest."""

    pipe_width: int = option(
        2,
        "How many steps are in the pipe. A step applies the averaged gradients from one step fewer before. 1 is sync.",
        kind="positive",
    )
    pipe_warmup: int = option(
        0,
        "How many steps of plain sync come first, for each optimizer.",
        kind="count",
    )
    pipe_predict: bool = option(
        True,
        "Whether a step computes at the weights that the gradients under way will lead to, as far as a rank can tell "
        "by its own. off is Pipe-SGD as published, which diverges at smaller rates.",
        kind="switch",
    )


class _UnderWay:
    """The gradients of one optimizer that have not been applied yet, oldest first, and what applies them.

    Attributes:
        sums: what will come of them.
        own: this rank's part of each, and which part of the batch's rows that is.
    """

    def __init__(self, apply: Apply):
        import tensorflow as tf

        self.apply = apply
        self.sums: deque[PendingAllreduce] = deque()
        self.own: deque[tuple[Sequence[np.ndarray], np.ndarray]] = deque()

        def guess(own: Sequence[tf.Tensor], part: tf.Tensor) -> None:
            apply([tf.math.divide_no_nan(one, tf.cast(part, one.dtype)) for one in own])

        self._guess = tf.function(guess, autograph=False)

    def take_oldest(self, ranks: World) -> list[np.ndarray]:
        """The sums that are applied next. Collective."""
        self.own.popleft()
        return self.sums.popleft().get(ranks)

    def guesses(self) -> list[Callable[[], Any]]:
        """For each of them an update by what this rank knows of it: the mean over its own rows."""
        return [functools.partial(self._guess, list(own), part) for own, part in self.own]


class Pipe(Sync):
    """Apply the averaged gradients of `pipe_width` - 1 steps before."""

    name = "pipe"
    text = "a step applies the gradients of an earlier step, which travel while it computes"
    price = "what a rank predicts of the weights is off by the noise of its rows, and more with a wider pipe"
    line = "--"
    Options = PipeOptions
    options: PipeOptions

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.delays_updates = self.only_in_fit = self.options.pipe_width > 1
        late = self.options.pipe_width - 1
        self.changes = f"gradients are applied {'a step' if late == 1 else f'{late} steps'} late" if late else ""
        self.remedy = "take a smaller learning rate or less momentum, or --strategy sync"
        self._under_way: dict[int, _UnderWay] = {}  # by optimizer; the same order on every rank
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._predicted: weakref.WeakKeyDictionary[Any, PredictedWeights] = weakref.WeakKeyDictionary()

    @classmethod
    def check(cls, settings: Settings, ranks: int) -> None:
        if settings.faults != "abort":
            raise SettingError(
                f"--strategy pipe and --faults {settings.faults} do not go together: a step that has begun cannot be "
                "taken back, or be kept, once its gradients travel. Take --strategy sync, or --faults abort."
            )

    def predict(self, step: PlannedStep) -> StepCost:
        width, exchange = self.options.pipe_width, step.exchange()
        if width == 1:
            return step.overlapped()
        update = step.update
        if self.options.pipe_predict:
            update *= width  # one by each gradient under way, too
        return step.takes(step_seconds(step.compute, update, exchange, width, busy=step.machine.busy), exchange)

    def before_step(self, model: Any) -> None:
        for optimizer, predicted in self._predicted.items():
            line = self._under_way.get(id(optimizer))
            if line is not None and line.own:
                predicted.put(line.guesses())

    def delay(self, update: Update, gradients: Sequence[Gradient]) -> None:
        import numpy as np
        import tensorflow as tf

        from matex_tf.core import world
        from matex_tf.exchange import async_allreduce, tf_op
        from matex_tf.exchange.bucket import BucketPlan, check_dtypes

        # Rows of an index would have to be joined in another round trip: sparse gradients travel as dense ones.
        given = {place: tf.convert_to_tensor(one) for place, one in enumerate(gradients) if one is not None}
        dense, labels = list(given.values()), [f"the gradient of {update.names[place]}" for place in given]
        if not given:
            return update.apply(list(gradients))  # the optimizer says that there is nothing to do
        check_dtypes([tensor.dtype.name for tensor in dense], labels)
        predicted, plan = self._prediction_of(update), None

        def apply(sums: Sequence[Any]) -> None:
            result: list[Gradient] = [None] * len(gradients)
            for place, total in zip(given, sums, strict=True):
                result[place] = tf.convert_to_tensor(total)
            update.apply(result)

        line = _UnderWay(apply)

        def post(part: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
            nonlocal plan
            ranks = world.current()
            if plan is None or plan.shapes != [array.shape for array in arrays]:
                plan = BucketPlan.of(WHAT, labels, arrays, coded=True, at_once=True)
            ahead = self._under_way.setdefault(id(update.key), line)
            ahead.sums.append(async_allreduce.of(ranks, plan).post(ranks, plan, arrays))
            ahead.own.append((arrays, part))
            step = self._steps[update.key] = self._steps.get(update.key, 0) + 1
            width = self.options.pipe_width if step > self.options.pipe_warmup else 1
            return [np.array(len(ahead.sums) >= width), np.array(predicted is not None and predicted.end())]

        def collect(*arrays: np.ndarray) -> list[np.ndarray]:
            return self._under_way[id(update.key)].take_oldest(world.current())

        def apply_oldest() -> tf.Tensor:
            sums = tf_op.call(collect, dense, [tensor.dtype for tensor in dense])
            for total, tensor in zip(sums, dense, strict=True):
                total.set_shape(tensor.shape)
            apply(sums)
            return tf.constant(True)

        known = tf_op.Given(WHAT, labels, read=lambda arrays: list(arrays[1:]))
        neither = [np.array(False), np.array(False)]
        ready, elsewhere = tf_op.call(post, [update.part, *dense], [tf.bool, tf.bool], lambda arrays: neither, known)
        ready.set_shape([])
        elsewhere.set_shape([])
        if predicted is not None:
            predicted.take_back_if(elsewhere)
        tf.cond(ready, apply_oldest, lambda: tf.constant(False))

    def _prediction_of(self, update: Update) -> PredictedWeights | None:
        """Of an optimizer, the same for all graphs of a step; None where steps compute at the weights that are."""
        from matex_tf.strategies.predicted_weights import PredictedWeights

        known = self._predicted.get(update.key)
        if self.options.pipe_predict and (known is None or not known.is_of(update.changed)):
            known = self._predicted[update.key] = PredictedWeights(update.changed)
        return known

    def flush(self, model: Any) -> None:
        from matex_tf.core import world

        ranks = world.current()
        if ranks.exchange is not None and ranks.exchange.background is not None:
            ranks.exchange.background.flush(ranks)
        for predicted in self._predicted.values():
            if predicted.end():
                predicted.take_back()  # the step that would have done so has failed
        under_way, self._under_way = self._under_way, {}
        for line in under_way.values():
            while line.sums:
                line.apply(line.take_oldest(ranks))


def step_seconds(
    compute: float, update: float, exchange: Cost, width: int, channels: int = 1, busy: bool = False
) -> float:
    """Pipe-SGD of width K: a step applies the gradients of K - 1 steps before, while those since then are under way.

    The longest of compute + update (resources are limited by the cores), exchange / channels (by the network, which has
    room for so many exchanges at a time), and (compute + update + exchange) / K (by the width; the paper's time with
    unlimited resources). With one channel, and K = 2 or more, max(compute + update, exchange); K = 1 is sync.

    Args:
        busy: see `cost_model.Machine`.
    """
    if width == 1:
        return compute + exchange.seconds + update  # sync
    own = compute + update
    return max(
        own + (exchange.work if busy else 0.0),
        exchange.seconds / min(channels, width),
        (own + exchange.seconds) / width,
    )
