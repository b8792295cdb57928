"""Which ops of TensorFlow the steps of Keras are made of, and which of these a rank computes for its rows alone.

`scripts/ops` traces a training step for each public layer, loss, metric, optimizer and activation of Keras, plans it,
and prints the table that docs/partition-ops.md holds: for each type of op how often it occurs, and where it is computed
whole.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import tensorflow as tf

from matex_tf.patches.partition import rules
from matex_tf.patches.partition.step import Partitioned
from tests.support.cases import every_layer
from tests.support.partition import Meeting, ThreadExchange

#: What is computed whole: by name of the loss, metric, optimizer or activation, why.
WHOLE = {
    "CTC": "a loop over time whose state has rows in the middle of what it scatters to",
    "sparsemax": "what it takes along the last axis is scattered to as many rows as there are",
}


def plan(function: Callable[..., Any], *specs: Any) -> Any:
    """The plan of a function of a batch."""
    traced = tf.function(function).get_concrete_function(*specs)
    return Partitioned(traced, [True] * len(specs), ThreadExchange(Meeting(1), 0)).plan


def layers(labels: Any = None) -> Iterator[tuple[str, Any]]:
    """Name and plan of a step with each layer."""
    for label in labels or every_layer.labels_here():
        inputs: dict[str, Any] = {}
        model = keras.Model(inputs, every_layer.branch(label, inputs))
        kinds = list(inputs)
        specs = [tf.TensorSpec([None, *inputs[kind].shape[1:]], inputs[kind].dtype) for kind in kinds]
        weights = [weight.value for weight in model.trainable_variables]

        def step(*batch: Any, model: Any = model, weights: Any = weights, kinds: Any = kinds) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(dict(zip(kinds, batch, strict=True)), training=True))
                loss += sum(model.losses)
            for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                if gradient is not None:
                    weight.assign_sub(0.1 * tf.convert_to_tensor(gradient))
            return loss

        yield label, plan(step, *specs)


def losses() -> Iterator[tuple[str, Any]]:
    """Name and plan of the gradient of each loss, with weights of rows."""
    for name, kind in _classes(keras.losses, keras.losses.Loss):
        given = tf.int32 if name.startswith(("Sparse", "CTC", "CategoricalGeneralized")) else tf.float32
        shape = [None, 5, 4] if name == "CTC" else [None, 4]
        of_labels = {"CTC": [None, 3], "SparseCategoricalCrossentropy": [None]}.get(name, [None, 4])
        of_labels = [None, 1] if name in ("Circle", "CategoricalGeneralizedCrossEntropy") else of_labels
        given = tf.int32 if name == "Circle" else given
        weight = tf.Variable(tf.ones([4, 4]))
        loss = kind()

        def step(y: Any, x: Any, w: Any, loss: Any = loss, weight: Any = weight) -> Any:
            with tf.GradientTape() as tape:
                value = loss(y, tf.nn.softmax(x @ weight), sample_weight=w)
            weight.assign_sub(tape.gradient(value, weight))
            return value

        yield name, plan(step, tf.TensorSpec(of_labels, given), tf.TensorSpec(shape), tf.TensorSpec([None]))


def metrics() -> Iterator[tuple[str, Any]]:
    """Name and plan of an update of each metric, and its result."""
    arguments: dict[str, dict[str, Any]] = {
        "IoU": {"num_classes": 4, "target_class_ids": [0]}, "MeanIoU": {"num_classes": 4},
        "OneHotIoU": {"num_classes": 4, "target_class_ids": [0]}, "OneHotMeanIoU": {"num_classes": 4},
        "BinaryIoU": {"target_class_ids": [0]}, "PrecisionAtRecall": {"recall": 0.5},
        "RecallAtPrecision": {"precision": 0.5}, "SensitivityAtSpecificity": {"specificity": 0.5},
        "SpecificityAtSensitivity": {"sensitivity": 0.5},
    }  # fmt: skip
    for name, kind in _classes(keras.metrics, keras.metrics.Metric):
        if name == "MeanMetricWrapper":
            continue
        metric = kind(**arguments.get(name, {}))
        sparse = name.startswith("Sparse")
        codes = name in ("Accuracy", "BinaryIoU", "IoU", "MeanIoU")
        weighted = "sample_weight" in inspect.signature(metric.update_state).parameters
        alone = "y_true" not in inspect.signature(metric.update_state).parameters
        shape = [None] if codes else [None, 4]
        specs = [tf.TensorSpec([None] if sparse else shape, tf.int32 if sparse or codes else tf.float32)]
        specs += [tf.TensorSpec(shape), tf.TensorSpec([None])]
        metric.update_state(*_ones(specs[:1] if alone else specs[:2]))

        def step(y: Any, x: Any, w: Any, metric: Any = metric, alone: bool = alone, weighted: bool = weighted) -> Any:
            more = {"sample_weight": w} if weighted else {}
            metric.update_state(*([y] if alone else [y, x]), **more)
            return metric.result()

        yield name, plan(step, *specs)


def _ones(specs: Any) -> list[Any]:
    return [tf.ones([2, *spec.shape[1:]], spec.dtype) for spec in specs]


def optimizers() -> Iterator[tuple[str, Any]]:
    """Name and plan of a step with each optimizer, of dense weights and an embedding."""
    options: list[dict[str, Any]] = [{}, {"clipnorm": 0.1}, {"global_clipnorm": 0.1}, {"use_ema": True}]
    more = {"clipnorm": "clipnorm", "global_clipnorm": "global_clipnorm", "use_ema": "moving averages"}
    skipped = ("LossScaleOptimizer", "MultiOptimizer", "OptimizerMap")
    for name, kind in _classes(keras.optimizers, keras.optimizers.Optimizer):
        for option in options if name not in skipped else []:
            if name in ("ScheduleFreeAdamW",) and option:
                continue
            dense = [keras.layers.Flatten(), keras.layers.Dense(3), keras.layers.Dense(2)]
            model = keras.Sequential([keras.Input((5,), dtype="int32"), keras.layers.Embedding(3000, 4), *dense])
            optimizer = kind(**option)
            optimizer.build(model.trainable_variables)

            def step(x: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(model(x) ** 2)
                optimizer.apply(tape.gradient(loss, [weight.value for weight in model.trainable_variables]))
                return loss

            label = ", ".join([name, *(more[key] for key in option)])
            yield label, plan(step, tf.TensorSpec([None, 5], tf.int32))


def activations() -> Iterator[tuple[str, Any]]:
    """Name and plan of the gradient of each activation."""
    for name, function in vars(keras.activations).items():
        if not inspect.isfunction(function) or name in ("deserialize", "get", "serialize"):
            continue
        weight = tf.Variable(tf.ones([4, 4]))
        more = (0.0, 0.0) if name == "threshold" else ()

        def step(x: Any, function: Any = function, weight: Any = weight, more: Any = more) -> Any:
            with tf.GradientTape() as tape:
                value = tf.reduce_mean(function(x @ weight, *more))
            weight.assign_sub(tape.gradient(value, weight))
            return value

        yield name, plan(step, tf.TensorSpec([None, 4]))


def _classes(module: Any, base: type) -> Iterator[tuple[str, Any]]:
    for name, kind in sorted(vars(module).items()):
        if inspect.isclass(kind) and issubclass(kind, base) and kind is not base:
            yield name, kind


KINDS: dict[str, Callable[[], Iterator[tuple[str, Any]]]] = {
    "layers": layers, "losses": losses, "metrics": metrics, "optimizers": optimizers, "activations": activations,
}  # fmt: skip


def counted(of: Any) -> Counter[str]:
    """How often each type of op occurs in a plan, in loops and branches too."""
    found = Counter(node.op.type for node in of.nodes)
    for node in of.nodes:
        for inside in node.inside:
            found += counted(inside)
    return found


def whole_types(of: Any) -> tuple[str, ...]:
    """The types of ops that every rank computes whole."""
    return tuple(sorted({op.type for op in of.computed_whole}))


def main() -> int:
    parser = argparse.ArgumentParser(description="The ops of Keras' steps, and which are computed for a rank's rows.")
    parser.add_argument("--kind", choices=list(KINDS), help="of steps; all if it is left out")
    options = parser.parse_args()
    rules.load()
    counts: dict[str, Counter[str]] = {}
    whole: list[tuple[str, str, tuple[str, ...]]] = []
    for kind in [options.kind] if options.kind else KINDS:
        counts[kind] = Counter()
        for name, found in KINDS[kind]():
            counts[kind] += counted(found)
            if found.computed_whole:
                whole.append((kind, name, whole_types(found)))
    print("| op | rule | " + " | ".join(counts) + " |\n|---|---|" + "---|" * len(counts))
    for name in sorted(set().union(*counts.values())):
        known = "yes" if name in rules.RULES else ""
        print(f"| {name} | {known} | " + " | ".join(str(one[name] or "") for one in counts.values()) + " |")
    print()
    for kind, name, types in whole:
        print(f"- {kind}: {name}: {', '.join(types)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
