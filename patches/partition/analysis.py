"""The first pass: a label for each tensor, and where values are converted. Nothing is built.

Each value is converted to whole at most once. A conversion that needs the other ranks is an *exchange*; the level of an
exchange is the number of those on the longest way to it. Exchanges of one level travel together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from matex_tf.patches.partition import rules
from matex_tf.patches.partition.labels import Label, R, join
from matex_tf.patches.partition.rules import Op, Ruling, lists
from matex_tf.patches.partition.shapes import BRANCHES, HANDLES, LOOPS, Shaped
from matex_tf.patches.partition.tensor_map import TensorMap

#: Ops that give what they get: no op is made of them.
_ALIASES = ("Identity", "StopGradient", "PreventGradient", "Snapshot", "PlaceholderWithDefault")


@dataclasses.dataclass
class Node:
    """An op of the step and what was decided of it.

    Attributes:
        op: of the shaped graph.
        ruling: which labels its inputs get and its outputs have.
        inside: the plans of a loop's condition and body, or of branches.
        known: whether a rule decided, or every rank computes the whole.
        level: the number of exchanges that must have happened before it.
    """

    op: Any
    ruling: Ruling
    inside: tuple[Plan, ...] = ()
    known: bool = True
    level: int = 0


class Plan:
    """What a rank does for a graph.

    Attributes:
        shaped: the graph.
        nodes: one for each op, in their order; labels: by tensor.
        alias: a tensor that is another one under a new name.
        exchanges: tensors that are needed whole and are not, with the level of their exchange.
        computed_whole: types of ops that no rule knew while there were rows.
    """

    def __init__(self, shaped: Shaped, labels: Sequence[Label]):
        """Args: labels: of the inputs of the graph."""
        self.shaped = shaped
        self.labels: TensorMap[Label] = TensorMap()
        self.labels.update(zip(shaped.inputs, labels, strict=True))
        self.alias: TensorMap[Any] = TensorMap()
        self.nodes: list[Node] = []
        self.exchanges: TensorMap[int] = TensorMap()
        self.wanted: TensorMap[None] = TensorMap()  # in order
        self.computed_whole: list[Any] = []
        needed = _needed(shaped)
        for op in shaped.ops:
            if op in needed:
                self._decide(op)

    def root(self, tensor: Any) -> Any:
        """The tensor that this one is another name of."""
        while tensor in self.alias:
            tensor = self.alias[tensor]
        return tensor

    def label(self, tensor: Any) -> Label:
        """The label of a tensor; a part that is exchanged anyhow is whole."""
        root = self.root(tensor)
        label = self.labels[root]
        return R if label.kind == "P" and root in self.wanted else label

    def _decide(self, op: Any) -> None:
        if op.type in _ALIASES and op.inputs[0].dtype not in HANDLES:
            self.alias[op.outputs[0]] = op.inputs[0]
            return
        labels = [self.label(tensor) for tensor in op.inputs]
        if op.type in LOOPS:
            node = self._loop(op, labels)
        elif op.type in BRANCHES:
            node = self._branch(op, labels)
        elif _has_list(op, labels):
            node = Node(op, lists.decide(Op(op, labels, self.shaped)))
        else:
            node = self._by_rule(op, labels)
        wants = [
            label if want is None and label.kind != "L" else want
            for want, label in zip(node.ruling.wants, labels, strict=True)
        ]
        node.ruling = dataclasses.replace(node.ruling, wants=wants)
        for tensor, label in zip(op.outputs, node.ruling.gives, strict=True):
            self.labels[tensor] = label
        for tensor, want in zip(op.inputs, wants, strict=True):
            if want is not None:
                self.want(tensor, want)
        self.nodes.append(node)

    def want(self, tensor: Any, label: Label) -> None:
        """Take note that a tensor is needed with a label."""
        root = self.root(tensor)
        has = self.labels[root]
        if has != label and has.kind in "SP":
            self.wanted[root] = None

    def _by_rule(self, op: Any, labels: list[Label]) -> Node:
        seen = Op(op, labels, self.shaped)
        if all(label.kind == "R" for label in labels) and not any(
            tensor in self.shaped.known for tensor in op.inputs
        ):
            return Node(op, rules.whole(seen))
        ruling = rules.decide(seen)
        if ruling is not None:
            return Node(op, ruling)
        if any(label.kind == "S" for label in labels):
            self.computed_whole.append(op)
        return Node(op, rules.whole(seen), known=all(label.kind == "R" for label in labels))

    # -- loops and branches

    def _loop(self, op: Any, labels: list[Label]) -> Node:
        """Labels of what goes round are joined until they stand still."""
        condition, body = self.shaped.bodies[op]
        stays = {i for i, (a, b) in enumerate(zip(body.inputs, body.outputs, strict=True)) if a is b}
        before, whole = [], set()
        while True:
            inside = Plan(body, labels)
            new = [
                label if i in stays or i in whole else join(label, inside.label(tensor))
                for i, (label, tensor) in enumerate(zip(labels, body.outputs, strict=True))
            ]
            cut = [i for i, label in enumerate(new) if i not in stays and label.kind == "S" and label != labels[i]]
            unfit = {i for i in cut if not _fits(body, body.inputs[i], new[i])}
            new = [R if i in unfit else label for i, label in enumerate(new)]
            if new == labels:
                break
            if new in before:  # they would go round for ever
                whole |= {i for i, pair in enumerate(zip(new, labels, strict=True)) if pair[0] != pair[1]}
                new = [R if i in whole and label.kind != "L" else label for i, label in enumerate(new)]
            before.append(labels)
            labels = new
        for i, tensor in enumerate(body.outputs):
            inside.want(tensor, labels[i])
        test = Plan(condition, labels)
        test.want(condition.outputs[0], R)
        wants = [None if self.label(t) == label else label for t, label in zip(op.inputs, labels, strict=True)]
        for plan in (test, inside):
            plan.finish()
            self.computed_whole += plan.computed_whole
        return Node(op, Ruling(wants, labels), (test, inside))

    def _branch(self, op: Any, labels: list[Label]) -> Node:
        """The predicate is whole; so is what is a part, which a branch might use in two ways."""
        given = [R if label.kind == "P" else label for label in labels[1:]]
        plans = [Plan(body, given) for body in self.shaped.bodies[op]]
        gives = [plans[0].label(tensor) for tensor in plans[0].shaped.outputs]
        for plan in plans[1:]:
            gives = [
                join(label, plan.label(tensor)) for label, tensor in zip(gives, plan.shaped.outputs, strict=True)
            ]
        outputs = zip(*(plan.shaped.outputs for plan in plans), strict=True)
        graphs = [plan.shaped for plan in plans]
        fits = [all(map(_fits, graphs, some, [label] * len(plans))) for label, some in zip(gives, outputs, strict=True)]
        gives = [label if fit else R for label, fit in zip(gives, fits, strict=True)]
        for plan in plans:
            for tensor, label in zip(plan.shaped.outputs, gives, strict=True):
                plan.want(tensor, label)
            plan.finish()
            self.computed_whole += plan.computed_whole
        return Node(op, Ruling([R, *given], gives), tuple(plans))

    # -- levels

    def finish(self, outputs: Sequence[Label] = ()) -> Plan:
        """Decide when each exchange happens.

        Args:
            outputs: labels that the outputs of the graph are given with.
        """
        for tensor, label in zip(self.shaped.outputs, outputs, strict=False):
            self.want(tensor, label)
        ready = self._ready()
        depth = max([0, *(level + 1 for tensor, level in ready.items() if tensor in self.wanted)])
        latest = self._latest(depth)
        for tensor in self.wanted:
            self.exchanges[tensor] = latest[tensor]
        self._levels()
        return self

    def _reads(self, node: Node) -> list[tuple[Any, bool]]:
        """What an op reads, and whether after an exchange."""
        reads = []
        for tensor, want in zip(node.op.inputs, node.ruling.wants, strict=True):
            root = self.root(tensor)
            has = self.labels[root]
            reads.append((root, root in self.wanted and want is not None and want != has))
        return reads

    def _ready(self) -> TensorMap[int]:
        """The number of exchanges before a value can be there, by tensor."""
        levels: TensorMap[int] = TensorMap()
        of_op: dict[Any, int] = {}
        for node in self.nodes:
            level = max([0, *(levels.get(root, 0) + after for root, after in self._reads(node))])
            level = max([level, *(of_op.get(op, 0) for op in self._waits(node.op))])
            of_op[node.op] = level
            for tensor in node.op.outputs:
                levels[tensor] = level
        return levels

    def _latest(self, depth: int) -> TensorMap[int]:
        """The last level at which a value can be exchanged without making the step longer: what can wait travels with
        what comes later, as gradients do with all other gradients."""
        latest: TensorMap[int] = TensorMap()
        exchange_by: TensorMap[int] = TensorMap()
        for tensor in self.wanted:  # by the outputs of the graph too, which no op reads
            exchange_by[tensor], latest[tensor] = depth, depth - 1
        op_latest: dict[Any, int] = {}
        for node in reversed(self.nodes):
            after = [latest.get(tensor, depth) for tensor in node.op.outputs]
            level = min([depth, op_latest.get(node.op, depth), *after])
            op_latest[node.op] = level
            for op in self._waits(node.op):
                op_latest[op] = min(op_latest.get(op, depth), level)
            for root, exchanged in self._reads(node):
                if exchanged:
                    exchange_by[root] = min(exchange_by.get(root, depth), level)
                    latest[root] = min(latest.get(root, depth), level - 1)
                else:
                    latest[root] = min(latest.get(root, depth), level)
        return exchange_by

    def _levels(self) -> None:
        levels: TensorMap[int] = TensorMap()
        of_op: dict[Any, int] = {}
        for node in self.nodes:
            level = max(
                [0, *(self.exchanges[root] if after else levels.get(root, 0) for root, after in self._reads(node))]
            )
            node.level = max([level, *(of_op.get(op, 0) for op in self._waits(node.op))])
            of_op[node.op] = node.level
            for tensor in node.op.outputs:
                levels[tensor] = node.level

    def _waits(self, op: Any) -> list[Any]:
        """Ops that an op waits for; through those of which none is made."""
        found, stack = [], list(op.control_inputs)
        while stack:
            one = stack.pop()
            if one.type in _ALIASES or one.outputs and one.outputs[0] in self.alias:
                stack += [*one.control_inputs, *(tensor.op for tensor in one.inputs)]
            else:
                found.append(one)
        return found


def _fits(shaped: Shaped, tensor: Any, label: Label) -> bool:
    """Whether a value that is whole can be cut to rows with this label."""
    if label.kind != "S":
        return True
    shape = shaped.shape(tensor)
    size = shape[label.axis] if shape is not None and label.axis < len(shape) else None
    return shaped.counts(size) and size % (shaped.prime * label.blocks) == 0  # type: ignore[operator]


def _needed(shaped: Shaped) -> set[Any]:
    """The ops that outputs or effects depend on."""
    from tensorflow.python.framework import auto_control_deps

    needed: set[Any] = set()
    stack = [tensor.op for tensor in shaped.outputs]
    stack += [op for op in shaped.ops if auto_control_deps.op_is_stateful(op) and op.type != "ReadVariableOp"]
    while stack:
        op = stack.pop()
        if op not in needed:
            needed.add(op)
            stack += [tensor.op for tensor in op.inputs]
            stack += list(op.control_inputs)
    return needed


def _has_list(op: Any, labels: Sequence[Label]) -> bool:
    of_lists = op.type.startswith("TensorList") or op.type == "EmptyTensorList"
    return of_lists or any(label.kind == "L" for label in labels)
