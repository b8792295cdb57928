"""Loops and branches of a rank's graph: their bodies are built by plans of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from matex_tf.patches.partition import schedule
from matex_tf.patches.partition.labels import R
from matex_tf.patches.partition.shapes.shaped import HANDLES

if TYPE_CHECKING:
    from matex_tf.patches.partition.analysis import Node, Plan
    from matex_tf.patches.partition.build import Builder


def loop(builder: Builder, node: Node) -> list[Any]:
    """The outputs of a loop: what its body changes goes round, with the labels of the plan.

    Args:
        builder: of the graph around it. node: a While, with the plans of its condition and body.
    """
    test, body = node.inside
    labels = node.ruling.gives
    given = [builder.get(tensor, label) for tensor, label in zip(node.op.inputs, labels, strict=True)]
    pairs = zip(body.shaped.inputs, body.shaped.outputs, strict=True)
    moving = [i for i, (a, b) in enumerate(pairs) if a is not b]

    def values(round_: Sequence[Any]) -> list[Any]:
        every = list(given)
        for i, value in zip(moving, round_, strict=True):
            every[i] = value
        return every

    def condition(*round_: Any) -> Any:
        return builder.inside(test).run(values(round_), [R])[0]

    def step(*round_: Any) -> list[Any]:
        results = builder.inside(body).run(values(round_), labels)
        return [results[i] for i in moving]

    start = [given[i] for i in moving]
    invariants = [_invariant(value) for value in start]
    meets = any(map(schedule.exchanges, node.inside))  # in a round after the other
    options = {"parallel_iterations": 1} if meets else {}
    results = tf.while_loop(condition, step, start, shape_invariants=invariants, **options)
    outputs = list(given)
    for i, value in zip(moving, results, strict=True):
        outputs[i] = value
    return outputs


def branch(builder: Builder, node: Node) -> list[Any]:
    """The outputs of a branch; of one that has none, `builder.effects` is what it waits for.

    Args:
        builder: of the graph around it. node: an If or a Case, with a plan for each branch.
    """
    pred = builder.get(node.op.inputs[0], R)
    given = [builder.get(tensor, want) for tensor, want in zip(node.op.inputs[1:], node.ruling.wants[1:], strict=True)]

    def one_of(plan: Plan) -> Callable[[], list[Any]]:
        def run() -> list[Any]:
            results = builder.inside(plan).run(given, list(node.ruling.gives))
            return [tf.identity(result) if result.dtype not in HANDLES else result for result in results]

        return run

    if not node.op.outputs:

        def effects(plan: Plan) -> Callable[[], Any]:
            def run() -> Any:
                builder.inside(plan).run(given, list(node.ruling.gives))
                return tf.constant(0)

            return run

        branches: list[Callable[[], Any]] = [effects(plan) for plan in node.inside]
    else:
        branches = [one_of(plan) for plan in node.inside]
    if node.op.type in ("If", "StatelessIf"):
        if pred.dtype != tf.bool:
            pred = tf.cast(pred, tf.bool)
        results = tf.cond(pred, *branches)
    else:
        results = tf.switch_case(pred, branches)
    if not node.op.outputs:
        builder.effects = [results]
        return []
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _invariant(value: Any) -> tf.TensorShape:
    if value.dtype in HANDLES or value.shape.rank is None:
        return tf.TensorShape(None)
    return tf.TensorShape([None] * value.shape.rank)
