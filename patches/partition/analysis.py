"""The first pass: a label for each tensor, and where values are converted. Nothing is built.

Each value is converted to whole at most once. A conversion that needs the other ranks is an *exchange*; the level of an
exchange is the number of those on the longest way to it. Exchanges of one level travel together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from matex_tf.patches.partition import rules
from matex_tf.patches.partition.labels import F, Label, P, R, S, join
from matex_tf.patches.partition.patterns import guarded, sparse, squares
from matex_tf.patches.partition.rules import Op, Ruling, lists
from matex_tf.patches.partition.schedule import Ready, schedule
from matex_tf.patches.partition.shapes.shaped import BRANCHES, HANDLES, LOOPS, Shaped, shape_of
from matex_tf.patches.partition.tensor_map import TensorMap

#: Ops that give what they get: no op is made of them.
_ALIASES = ("Identity", "StopGradient", "PreventGradient", "Snapshot", "PlaceholderWithDefault")
#: Ops that lay out a value anew, which takes less than to keep it.
_LAYOUT = ("Cast", "ExpandDims", "Reshape", "Slice", "Squeeze", "StridedSlice", "Transpose")


@dataclasses.dataclass
class Node:
    """An op of the step and what was decided of it.

    Attributes:
        op: of the shaped graph.
        ruling: which labels its inputs get and its outputs have.
        inputs, outputs: what it reads and gives: those of the op, if no rewrite says otherwise.
        reads: the inputs under their first name, and whether after an exchange; waits: ops that it waits for.
        inside: the plans of a loop's condition and body, or of branches.
        known: whether a rule decided, or every rank computes the whole.
        level: the number of exchanges that must have happened before it.
    """

    op: Any
    ruling: Ruling
    inside: tuple[Plan, ...] = ()
    known: bool = True
    level: int = 0
    inputs: Sequence[Any] = ()
    outputs: Sequence[Any] = ()
    reads: Sequence[tuple[Any, bool]] = ()
    waits: Sequence[Any] = ()


class Plan:
    """What a rank does for a graph.

    Attributes:
        shaped: the graph.
        nodes: one for each op, in their order; labels: by tensor.
        alias: a tensor that is another one under a new name.
        exchanges: tensors that are needed whole and are not, with the level of their exchange.
        scattered: sums among them of which each rank needs its part of the elements alone.
        free: tensors of rows that are made of whole values, with their op: each rank can make all rows.
        of_variables: parts that are made of variables alone, and whole values that are laid out anew of them: each op
            that reads one whole has it gathered for itself, so that it is gone after that; gathers: whether one does.
        gradients: those of them that are gradients, and may be encoded on their way.
        sparse: sparse gradients.
        computed_whole: types of ops that no rule knew while there were rows.
    """

    def __init__(self, shaped: Shaped, labels: Sequence[Label], inside: bool = False):
        """Args: shaped: the graph. labels: of its inputs. inside: whether it is that of a loop or a branch."""
        self.shaped, self._inside = shaped, inside
        in_parts = [t for t, label in zip(shaped.inputs, labels, strict=True) if label == F and t.dtype in HANDLES]
        shaped.in_parts.update(tuple(shape_of(handle) or ()) for handle in in_parts)
        needed = _needed(shaped)
        ops = [op for op in shaped.ops if op in needed]
        self._squares = squares.find(shaped, ops, _root)
        for adds in (True, False):
            self._decide_all(ops, labels, adds)
            if not self._is_mixed():
                break

    def _decide_all(self, ops: Sequence[Any], labels: Sequence[Label], adds: bool) -> None:
        """Args: adds: whether values of equal indices may be added before they travel."""
        shaped = self.shaped
        self.labels: TensorMap[Label] = TensorMap()
        self.labels.update(zip(shaped.inputs, labels, strict=True))
        self.alias: TensorMap[Any] = TensorMap()
        self.nodes: list[Node] = []
        self.exchanges: TensorMap[int] = TensorMap()
        self.scattered: TensorMap[None] = TensorMap()
        self.gradients: TensorMap[None] = TensorMap()
        self.wanted: TensorMap[None] = TensorMap()  # in order
        self.free: TensorMap[Node] = TensorMap()
        self.of_variables: TensorMap[Node] = TensorMap()
        self.gathers = False
        self.computed_whole: list[Any] = []
        self._ready = Ready()
        self._statistics: dict[tuple[Any, ...], list[squares.Statistic]] = {}
        self.sparse = sparse.find(shaped, ops, _root, adds, lambda tensor: self.labels.get(tensor) == F)
        shaped.local = self.sparse.local
        given = [tensor for tensor in shaped.inputs if tensor in self.sparse.gathered]
        self.wanted.update((tensor, None) for tensor in given if self.labels[tensor].kind == "S")
        for op in ops:
            self._decide(op)

    def _is_mixed(self) -> bool:
        """Whether some of the values and indices that a rank would add have rows of its own, and others are whole."""
        added = self.sparse.added
        pairs = [(self.labels.get(one, R), self.labels.get(indices, R)) for one, indices in added.items()]
        return any(one != indices or one not in (R, S(0)) for one, indices in pairs)

    def root(self, tensor: Any) -> Any:
        """The tensor that this one is another name of."""
        while tensor in self.alias:
            tensor = self.alias[tensor]
        return tensor

    def label(self, tensor: Any, op: Any = None) -> Label:
        """The label of a tensor for an op; a part that is exchanged anyhow is whole, and a sparse gradient that is
        gathered.

        Args:
            tensor: given by an op before, or an input. op: which reads it; None: any that does not read sums by index.
        """
        root = self.root(tensor)
        label = self.labels[root]
        if root in self.scattered:
            return F
        return R if root in self.wanted and (label.kind == "P" or self.sparse.is_whole(root, op)) else label

    def _decide(self, op: Any) -> None:
        if op.type in _ALIASES and op.inputs[0].dtype not in HANDLES:
            self.alias[op.outputs[0]] = op.inputs[0]
            return
        if op in self._squares and self._by_statistics(op, self._squares[op]):
            return
        labels = [self.label(tensor, op) for tensor in op.inputs]
        if op in self.sparse.divisions:
            by = self.sparse.divisions[op]
            self._add(Node(op, guarded.ruling(op, by, labels, op in self.sparse.local)), op.inputs, by.outputs(op))
            return
        if op.type in LOOPS:
            node = self._loop(op, labels)
        elif op.type in BRANCHES:
            node = self._branch(op, labels)
        elif _has_list(op, labels):
            node = Node(op, lists.decide(Op(op, labels, self.shaped)))
        else:
            node = self._by_rule(op, labels)
        self._add(node, op.inputs, op.outputs)

    def _add(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Take a node into the plan."""
        labels = [self.label(tensor, node.op) for tensor in inputs]
        wants = [
            label if want is None and label.kind != "L" else want
            for want, label in zip(node.ruling.wants, labels, strict=True)
        ]
        node.ruling = dataclasses.replace(node.ruling, wants=wants)
        node.inputs, node.outputs = list(inputs), list(outputs)
        for tensor, label in zip(node.outputs, node.ruling.gives, strict=True):
            self.labels[tensor] = label
            if label.kind == "S" and tensor in self.sparse.gathered:
                self.wanted[tensor] = None
        by_itself = len(outputs) == 1 and not node.inside and (node.ruling.whole or not node.op.op_def.is_stateful)
        if by_itself and node.ruling.gives[0].kind == "S" and all(want == R for want in wants):
            self.free[outputs[0]] = node
        for tensor, want in zip(node.inputs, wants, strict=True):
            if want is not None:
                self.want(tensor, want)
        roots = [self.root(tensor) for tensor in node.inputs]
        node.reads = [
            (root, want is not None and want != self.labels[root] and root in self.wanted)
            for root, want in zip(roots, wants, strict=True)
        ]
        node.waits = self._waits(node.op)
        self._ready.add(node)
        self.nodes.append(node)
        if not self._inside and len(outputs) == 1 and self._is_of_variables(node):
            self.of_variables[outputs[0]] = node

    def _is_of_variables(self, node: Node) -> bool:
        """Whether it gives a part that is made of variables in parts alone, or lays such a value out anew."""
        if node.ruling.gives[0] != F and not (node.op.type in _LAYOUT and node.ruling.gives[0] == R):
            return False
        has_part = any(label == F for label in map(self.labels.__getitem__, (root for root, _ in node.reads)))
        return (has_part or any(root in self.of_variables for root, _ in node.reads)) and all(
            root.dtype in HANDLES or root in self.of_variables or not self._ready.level(root, exchanged)
            for root, exchanged in node.reads
        )

    def want(self, tensor: Any, label: Label) -> None:
        """Take note that `tensor` is needed with `label`, and of the exchange if that takes one."""
        root = self.root(tensor)
        self.gathers |= root in self.of_variables and label == R
        if self._is_exchanged(root, label):
            if label == F and self.labels[root].is_sum and root not in self.wanted:
                self.scattered[root] = None
            elif label != F:
                self.scattered.pop(root, None)
            self.wanted[root] = None

    def _is_exchanged(self, root: Any, label: Label) -> bool:
        """Whether the other ranks are needed for a value with a label."""
        has = self.labels[root]
        return has != label and has.kind in "SPF" and root not in self.free and root not in self.of_variables

    def _by_rule(self, op: Any, labels: list[Label]) -> Node:
        seen = Op(op, labels, self.shaped)
        has_rows = any(label.kind != "R" for label in labels) or any(t in self.shaped.known for t in op.inputs)
        adds_up = op.type == "UnsortedSegmentSum" and tuple(seen.out_shapes[0] or ()) in self.shaped.in_parts
        if not has_rows and not op.op_def.is_stateful and not adds_up:
            return Node(op, rules.whole(seen))
        ruling = rules.decide(seen)
        if ruling is not None:
            better = self._waiting(op, labels, ruling) or self._free_for(op, labels, ruling)
            if better:
                other = {place: self._part_or_whole(op.inputs[place]) for place in better}
                node = self._by_rule(op, [other.get(place, label) for place, label in enumerate(labels)])
                wants = [
                    other.get(place) if want is None else want  # a part that is wanted after all stays one
                    for place, want in enumerate(node.ruling.wants)
                ]
                node.ruling = dataclasses.replace(node.ruling, wants=wants)
                return node
            return Node(op, ruling)
        if any(label.kind == "S" and self.root(t) not in self.free for t, label in zip(op.inputs, labels, strict=True)):
            self.computed_whole.append(op)
        return Node(op, rules.whole(seen), known=all(label.kind == "R" for label in labels))

    def _part_or_whole(self, tensor: Any) -> Label:
        """What becomes of a sum over the ranks that is added up: a part, if a variable of its shape lies in parts."""
        return F if tuple(self.shaped.shape(tensor) or ()) in self.shaped.in_parts else R

    def _waiting(self, op: Any, labels: list[Label], ruling: Ruling) -> list[int]:
        """The inputs that stay parts while the op waits for an exchange that they had better travel with."""
        kept = [place for place, label in enumerate(labels) if label.is_sum and ruling.wants[place] in (None, P)]
        kept = [place for place in kept if op.inputs[place].dtype not in HANDLES]
        if not kept or self.shaped.is_body:
            return []
        roots = [self.root(tensor) for tensor in op.inputs]
        others = [0]
        for place, root in enumerate(roots):
            want = ruling.wants[place] or labels[place]
            others += [self._ready.level(root, self._is_exchanged(root, want))] if place not in kept else []
        return [place for place in kept if self._ready.level(roots[place]) < max(others)]

    def _free_for(self, op: Any, labels: list[Label], ruling: Ruling) -> list[int]:
        """The inputs with rows, if every rank can make them whole, and a part would come of them."""
        rows = [place for place, label in enumerate(labels) if label.kind == "S"]
        free = all(self.root(op.inputs[place]) in self.free for place in rows)
        return rows if free and any(label.kind == "P" for label in ruling.gives) else []

    def _by_statistics(self, op: Any, of: squares.Squares) -> bool:
        """Let a mean or a sum of squares come of statistics that are exchanged before; whether that is of use."""
        label, about = self.label(of.x), self.root(of.about)
        shape = self.shaped.shape(of.x)
        if label.kind != "S" or label.axis not in of.axes or shape is None:
            return False
        is_mean = about is op.outputs[0]
        needed = self._ready.level(about, self._is_exchanged(about, R)) if not is_mean else None
        if needed is not None and needed <= self._ready.level(self.root(of.x)):
            return False  # what it is about is there already
        if of.key not in self._statistics:
            wants: list[Label | None] = [label]
            if of.weight is not None:
                has_rows = self.shaped.shape(of.weight)[label.axis] == shape[label.axis]  # type: ignore[index]
                wants.append(S(label.axis, label.blocks) if has_rows else R)
            sums = self._statistics[of.key] = squares.statistics(of)
            inputs = [of.x] if of.weight is None else [of.x, of.weight]
            self._add(Node(op, Ruling(wants, [P] * len(sums), squares.local(of))), inputs, sums)
        sums = self._statistics[of.key]
        inputs = sums[:1] if is_mean else [of.about, *sums]
        build = squares.whole(op, of, shape)
        self._add(Node(op, Ruling([R] * len(inputs), [R], build)), inputs, op.outputs)
        return True

    # -- loops and branches

    def _loop(self, op: Any, labels: list[Label]) -> Node:
        """Labels of what goes round are joined until they stand still."""
        condition, body = self.shaped.bodies[op]
        labels = [R if self.root(t) in self.of_variables else label for t, label in zip(op.inputs, labels, strict=True)]
        stays = {i for i, (a, b) in enumerate(zip(body.inputs, body.outputs, strict=True)) if a is b}
        before, whole = [], set()
        while True:
            inside = Plan(body, labels, inside=True)
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
        test = Plan(condition, labels, inside=True)
        test.want(condition.outputs[0], R)
        wants = [None if self.label(t) == label else label for t, label in zip(op.inputs, labels, strict=True)]
        for plan in (test, inside):
            plan.finish()
            self.computed_whole += plan.computed_whole
        return Node(op, Ruling(wants, labels), (test, inside))

    def _branch(self, op: Any, labels: list[Label]) -> Node:
        """The predicate is whole; so is what is a part, which a branch might use in two ways, but for gradients of what
        lies in parts, and beside variables that keep sums."""
        pairs = list(zip(op.inputs[1:], labels[1:], strict=True))
        sums = any(label.is_sum and tensor.dtype in HANDLES for tensor, label in pairs)
        given = [
            (label if sums else self._part_or_whole(tensor)) if label.is_sum else R if label.kind == "P" else label
            for tensor, label in pairs
        ]
        plans = [Plan(body, given, inside=True) for body in self.shaped.bodies[op]]
        gives = [plans[0].label(tensor) for tensor in plans[0].shaped.outputs]
        for plan in plans[1:]:
            gives = [join(label, plan.label(tensor)) for label, tensor in zip(gives, plan.shaped.outputs, strict=True)]
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
        schedule(self, self._ready)
        return self

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


def _root(tensor: Any) -> Any:
    """The tensor that this one is another name of."""
    while tensor.op.type in _ALIASES and tensor.dtype not in HANDLES:
        tensor = tensor.op.inputs[0]
    return tensor


def _fits(shaped: Shaped, tensor: Any, label: Label) -> bool:
    """Whether a value that is whole can be cut to rows with this label."""
    return label.kind != "S" or shaped.is_rows(label, shaped.shape(tensor))


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
