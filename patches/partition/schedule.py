"""When each exchange of a plan happens, and each op: what can wait travels with what comes later.

The level of an exchange is the number of those on the longest way to it; exchanges of one level travel together.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from matex_tf.patches.partition.shapes.shaped import BRANCHES, shape_of
from matex_tf.patches.partition.tensor_map import TensorMap

if TYPE_CHECKING:
    from matex_tf.patches.partition.analysis import Node, Plan

_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")


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
        """The number of exchanges before a value can be there; 0 for what no op has given.

        Args:
            tensor: under its first name. exchanged: whether its value after an exchange is meant.
        """
        return self._of.get(tensor, 0) + exchanged


def schedule(plan: Plan, ready: Ready) -> None:
    """Give each exchange of a plan (`exchanges`) and each op (`level`) its level.

    Args:
        plan: with all its nodes, and what is wanted of them. ready: to which the nodes have been added in their order.
    """
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


def last_exchange(plan: Plan) -> int | None:
    """The level of the last exchange of a scheduled plan; None for a plan without, or if a loop or a branch exchanges
    after it."""
    last = max(plan.exchanges.values(), default=None)
    inside = max((node.level for node in plan.nodes if any(map(exchanges, node.inside))), default=-1)
    return None if last is None or inside >= last else last


def exchanges(plan: Plan) -> bool:
    """Whether there is an exchange, be it in a loop or a branch."""
    return bool(plan.exchanges) or any(exchanges(inside) for node in plan.nodes for inside in node.inside)


def gradients(plan: Plan, handles: Collection[Any]) -> TensorMap[None]:
    """The sums of the last exchange from which the new values of some variables follow, and that have their shapes; in
    branches too, whose plans take note of them.

    Args:
        plan: scheduled.
        handles: those of the variables, as inputs of the plan's graph.
    """
    last, found = last_exchange(plan), TensorMap[None]()
    shapes = {tuple(shape) for handle in handles if (shape := shape_of(handle))}
    writes: dict[int, list[Any]] = {}  # what is given to the variables, by handle
    for op in (node.op for node in plan.nodes if node.op.type not in _READS):
        for handle in (tensor for tensor in op.inputs if tensor.dtype == tf.resource):
            writes.setdefault(id(handle), []).extend(op.inputs)
    stack = [tensor for handle in handles for tensor in writes.get(id(handle), ())]
    seen = set()
    while stack:
        tensor = plan.root(stack.pop())
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if plan.exchanges.get(tensor) == last is not None:
            shape = plan.shaped.shape(tensor)
            if plan.labels[tensor].is_sum and tensor.dtype.is_floating and shape and tuple(shape) in shapes:
                found[tensor] = None
        else:
            stack += [*tensor.op.inputs, *writes.get(id(tensor), ())]  # a slot is written, then read
    for node in plan.nodes:
        for inside in node.inside if node.op.type in BRANCHES else ():
            held = zip(node.op.inputs[1:], inside.shaped.inputs, strict=True)
            inside.gradients = gradients(inside, [own for one, own in held if any(one is each for each in handles)])
    return found
