"""When each exchange of a plan happens, and each op: what can wait travels with what comes later.

The level of an exchange is the number of those on the longest way to it; exchanges of one level travel together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matex_tf.patches.partition.tensor_map import TensorMap

if TYPE_CHECKING:
    from matex_tf.patches.partition.analysis import Node, Plan


class Ready:
    """The first level at which each value of a plan can be there, as ops are added in their order."""

    def __init__(self) -> None:
        self._of: TensorMap[int] = TensorMap()
        self._of_op: dict[Any, int] = {}

    def add(self, node: Node) -> None:
        """Take note of an op."""
        level = max([0, *(self.level(tensor, exchanged) for tensor, exchanged in node.reads)])
        level = max([level, *(self._of_op.get(op, 0) for op in node.waits)])
        self._of_op[node.op] = level
        for tensor in node.outputs:
            self._of[tensor] = level

    def level(self, tensor: Any, exchanged: bool = False) -> int:
        """That of a tensor, or of its value after an exchange."""
        return self._of.get(tensor, 0) + exchanged


def schedule(plan: Plan, ready: Ready) -> None:
    """Give each exchange and each op its level."""
    depth = max([0, *(ready.level(tensor, True) for tensor in plan.wanted)])
    latest = _latest(plan, depth)
    for tensor in plan.wanted:
        plan.exchanges[tensor] = latest[tensor]
    levels: TensorMap[int] = TensorMap()
    of_op: dict[Any, int] = {}
    for node in plan.nodes:
        level = max(
            [0, *(plan.exchanges[tensor] if exchanged else levels.get(tensor, 0) for tensor, exchanged in node.reads)]
        )
        node.level = max([level, *(of_op.get(op, 0) for op in node.waits)])
        of_op[node.op] = node.level
        for tensor in node.outputs:
            levels[tensor] = node.level


def _latest(plan: Plan, depth: int) -> TensorMap[int]:
    """The last level at which a value can be exchanged without making the step longer: gradients travel with all other
    gradients."""
    latest: TensorMap[int] = TensorMap()
    exchange_by: TensorMap[int] = TensorMap()
    for tensor in plan.wanted:  # by the outputs of the graph too, which no op reads
        exchange_by[tensor], latest[tensor] = depth, depth - 1
    op_latest: dict[Any, int] = {}
    for node in reversed(plan.nodes):
        after = [latest.get(tensor, depth) for tensor in node.outputs]
        level = min([depth, op_latest.get(node.op, depth), *after])
        op_latest[node.op] = level
        for op in node.waits:
            op_latest[op] = min(op_latest.get(op, depth), level)
        for tensor, exchanged in node.reads:
            if exchanged:
                exchange_by[tensor] = min(exchange_by.get(tensor, depth), level)
                latest[tensor] = min(latest.get(tensor, depth), level - 1)
            else:
                latest[tensor] = min(latest.get(tensor, depth), level)
    return exchange_by
