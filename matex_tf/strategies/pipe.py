"""Pipe-SGD (Li et al., NeurIPS 2018, arXiv 1811.03619, Algorithm 1): gradients travel while the next steps compute.

With a pipe of width K, step t computes the gradient g_t of the weights w_t and sends it on its way, then applies the
averaged gradient of K - 1 steps before, which has travelled meanwhile:

    w_(t+1) = w_t - rate * g_(t-K+1)        and w_(t+1) = w_t in the first K - 1 steps

K = 1 is sync. When the pipe is flushed, what is under way is waited for and applied, oldest first.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from matex_tf.errors import SettingError
from matex_tf.settings import Settings, option
from matex_tf.strategies.base import Gradient
from matex_tf.strategies.sync import WHAT, Sync

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from matex_tf.exchange.async_allreduce import PendingAllreduce
    from matex_tf.exchange.bucket_plan import BucketPlan
    from matex_tf.planning.cost_model import Cost
    from matex_tf.planning.step_cost import PlannedStep, StepCost

Apply = Callable[[list[Gradient]], None]


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


class _UnderWay:
    """The gradients of one optimizer that have not been applied yet, oldest first, and what applies them."""

    def __init__(self, apply: Apply):
        self.apply = apply
        self.sums: deque[PendingAllreduce] = deque()


class Pipe(Sync):
    """Apply the averaged gradients of `pipe_width` - 1 steps before."""

    name = "pipe"
    text = "a step applies the gradients of an earlier step, which travel while it computes"
    price = "gradients of earlier steps want a smaller learning rate, and then more steps"
    line = "--"
    Options = PipeOptions
    options: PipeOptions

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.delays_updates = self.only_in_fit = self.options.pipe_width > 1
        self.changes = self.note
        self.remedy = "take a smaller learning rate or less momentum, or --strategy sync"
        self._under_way: dict[int, _UnderWay] = {}  # by optimizer; the same order on every rank
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

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
        return step.takes(step_seconds(step.compute, step.update, exchange, width, busy=step.machine.busy), exchange)

    @property
    def note(self) -> str:
        width = self.options.pipe_width
        if width == 1:
            return ""
        steps = "the step before" if width == 2 else f"{width - 1} steps before"
        return f"a step applies the gradients of {steps}"

    def delay(self, key: Any, gradients: Sequence[Gradient], names: Sequence[str], apply: Apply) -> None:
        import numpy as np
        import tensorflow as tf

        from matex_tf.core import world
        from matex_tf.exchange import async_allreduce, tf_op
        from matex_tf.exchange.bucket_plan import BucketPlan, check_dtypes

        # Rows of an index would have to be joined in another round trip: sparse gradients travel as dense ones.
        given = {place: tf.convert_to_tensor(one) for place, one in enumerate(gradients) if one is not None}
        dense, labels = list(given.values()), [f"the gradient of {names[place]}" for place in given]
        if not given:
            return apply(list(gradients))  # the optimizer says that there is nothing to do
        check_dtypes([tensor.dtype.name for tensor in dense], labels)
        plan: BucketPlan | None = None

        def whole(sums: Sequence[Any]) -> list[Gradient]:
            result: list[Gradient] = [None] * len(gradients)
            for place, total in zip(given, sums, strict=True):
                result[place] = total
            return result

        def post(*arrays: np.ndarray) -> list[np.ndarray]:
            nonlocal plan
            ranks = world.current()
            if plan is None or plan.shapes != [array.shape for array in arrays]:
                plan = BucketPlan.of(WHAT, labels, arrays, coded=True, at_once=True)
            line = self._under_way.setdefault(
                id(key), _UnderWay(lambda sums: apply(whole([tf.convert_to_tensor(one) for one in sums])))
            )
            line.sums.append(async_allreduce.of(ranks, plan).post(ranks, plan, arrays))
            step = self._steps[key] = self._steps.get(key, 0) + 1
            width = self.options.pipe_width if step > self.options.pipe_warmup else 1
            return [np.array(len(line.sums) >= width)]

        def collect(*arrays: np.ndarray) -> list[np.ndarray]:
            return self._under_way[id(key)].sums.popleft().get(world.current())

        def apply_oldest() -> tf.Tensor:
            sums = tf_op.call(collect, dense, [tensor.dtype for tensor in dense])
            for total, tensor in zip(sums, dense, strict=True):
                total.set_shape(tensor.shape)
            apply(whole(sums))
            return tf.constant(True)

        known = tf_op.Given(WHAT, labels)
        ready = tf_op.call(post, dense, [tf.bool], lambda arrays: [np.array(False)], known)[0]
        ready.set_shape([])
        tf.cond(ready, apply_oldest, lambda: tf.constant(False))

    def flush(self, model: Any) -> None:
        from matex_tf.core import world

        ranks = world.current()
        if ranks.exchange is not None and ranks.exchange.background is not None:
            ranks.exchange.background.flush(ranks)
        under_way, self._under_way = self._under_way, {}
        for line in under_way.values():
            while line.sums:
                line.apply(list(line.sums.popleft().get(ranks)))


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
