"""Metrics of Keras, by their state."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, metrics

from tests.support.cases.common import KERAS, momentum, numbers, ready, table, weights_for


def every(kind, jit_compile=False):
    """All metrics of one kind, and the first four weighted, in one training: history, validation, `evaluate`.

    Args:
        kind: "binary", "classes", "indices" or "regression".
        jit_compile: XLA takes most of the time here.
    """
    x, y = table()
    width, activation, loss, targets, chosen = {
        "binary": (1, "sigmoid", "binary_crossentropy", (y > 0).astype("float32")[:, None], _binary()),
        "classes": (3, "softmax", "categorical_crossentropy", np.eye(3, dtype="float32")[y], _classes()),
        "indices": (3, "softmax", "sparse_categorical_crossentropy", y, _indices()),
        "regression": (2, None, "mse", np.stack([x[:, 0], x[:, 1] * x[:, 2]], 1) + 2, _regression()),
    }[kind]
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(width, activation=activation)]
    )
    model.compile(
        momentum(0.02), loss, metrics=chosen(), weighted_metrics=chosen("weighted_")[:4], jit_compile=jit_compile
    )
    ready(model)
    weights = weights_for(101)
    history = model.fit(
        x, targets, sample_weight=weights, batch_size=25, epochs=2, verbose=0,
        validation_data=(x[:38], targets[:38], weights[:38]),
    )  # fmt: skip
    evaluated = model.evaluate(x, targets, sample_weight=weights, batch_size=20, return_dict=True, verbose=0)
    return {"history": numbers(history.history), "evaluate": numbers(evaluated)}


#: Before this version Keras cannot compute these metrics in a graph, on one rank either.
CONSTRAINED_SINCE = (3, 4)


def constrained(prefix):
    return [
        metrics.PrecisionAtRecall(0.5, name=f"{prefix}precision_at_recall"),
        metrics.SensitivityAtSpecificity(0.5, name=f"{prefix}sensitivity"),
    ]


def _binary():
    def chosen(prefix=""):
        return [
            metrics.BinaryAccuracy(name=f"{prefix}accuracy"),
            metrics.AUC(name=f"{prefix}auc"),
            metrics.AUC(curve="PR", num_thresholds=30, name=f"{prefix}auc_pr"),
            metrics.Precision(name=f"{prefix}precision"),
            metrics.Recall(name=f"{prefix}recall"),
            metrics.F1Score(threshold=0.5, name=f"{prefix}f1"),
            metrics.FBetaScore(beta=2.0, threshold=0.5, average="micro", name=f"{prefix}fbeta"),
            metrics.BinaryIoU(name=f"{prefix}binary_iou"),
            metrics.TruePositives(name=f"{prefix}true_positives"),
            metrics.FalseNegatives(name=f"{prefix}false_negatives"),
            *(constrained(prefix) if KERAS >= CONSTRAINED_SINCE else []),
            metrics.BinaryCrossentropy(name=f"{prefix}crossentropy"),
            metrics.Hinge(name=f"{prefix}hinge"),
        ]

    return chosen


def _classes():
    def chosen(prefix=""):
        return [
            metrics.CategoricalAccuracy(name=f"{prefix}accuracy"),
            metrics.TopKCategoricalAccuracy(2, name=f"{prefix}top2"),
            metrics.F1Score(average="macro", name=f"{prefix}f1"),
            metrics.F1Score(name=f"{prefix}f1_by_class"),
            metrics.OneHotMeanIoU(3, name=f"{prefix}one_hot_iou"),
            metrics.Precision(class_id=1, name=f"{prefix}precision"),
            metrics.Recall(top_k=2, name=f"{prefix}recall"),
            metrics.AUC(multi_label=True, num_labels=3, num_thresholds=30, name=f"{prefix}auc"),
            metrics.KLDivergence(name=f"{prefix}divergence"),
            metrics.CosineSimilarity(name=f"{prefix}cosine"),
            metrics.CategoricalCrossentropy(name=f"{prefix}crossentropy"),
        ]

    return chosen


def _indices():
    def chosen(prefix=""):
        return [
            metrics.SparseCategoricalAccuracy(name=f"{prefix}accuracy"),
            metrics.SparseTopKCategoricalAccuracy(2, name=f"{prefix}top2"),
            metrics.MeanIoU(3, sparse_y_pred=False, name=f"{prefix}mean_iou"),
            metrics.IoU(3, [0, 2], sparse_y_pred=False, name=f"{prefix}iou"),
            metrics.SparseCategoricalCrossentropy(name=f"{prefix}crossentropy"),
        ]

    return chosen


def _regression():
    def chosen(prefix=""):
        return [
            metrics.MeanSquaredError(name=f"{prefix}mse"),
            metrics.RootMeanSquaredError(name=f"{prefix}rmse"),
            metrics.MeanAbsolutePercentageError(name=f"{prefix}mape"),
            metrics.R2Score(name=f"{prefix}r2"),
            metrics.R2Score(class_aggregation="variance_weighted_average", name=f"{prefix}r2_weighted"),
            metrics.LogCoshError(name=f"{prefix}logcosh"),
            metrics.MeanMetricWrapper(lambda a, b: abs(a - b), name=f"{prefix}wrapped"),
        ]

    return chosen


def correlation():
    """Correlations, whose state holds more than sums; they must be the answer of one rank or say that they are not."""
    x, _ = table(120)
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(2)])
    chosen = [metrics.PearsonCorrelation(name="pearson"), metrics.ConcordanceCorrelation(name="concordance")]
    model.compile(momentum(0.01), "mse", metrics=chosen)
    return numbers(model.fit(x, x[:, :2], batch_size=24, epochs=2, verbose=0).history)


def nested():
    """A metric inside a layer, and a metric that holds metrics."""

    class Size(layers.Layer):
        def __init__(self):
            super().__init__()
            self.size = metrics.Mean(name="size")

        def call(self, x):
            self.size.update_state(keras.ops.abs(x))
            return x

    class Pair(metrics.Metric):
        def __init__(self, name="pair"):
            super().__init__(name=name)
            self.low, self.high = metrics.Mean(), metrics.RootMeanSquaredError()

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.low.update_state(y_true - y_pred)
            self.high.update_state(y_true, y_pred)

        def result(self):
            return {"low": self.low.result(), "high": self.high.result()}

        def reset_state(self):
            self.low.reset_state()
            self.high.reset_state()

    x, _ = table()
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4), Size(), layers.Dense(1)])
    model.compile(momentum(0.01), "mse", metrics=[Pair()])
    return numbers(model.fit(x, x[:, :1], batch_size=25, epochs=2, verbose=0).history)
