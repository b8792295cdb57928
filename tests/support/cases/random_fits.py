"""Random training jobs in float64: what to fit, with what data and how, drawn from a seed.

`tests.support.fit_fuzz` runs them on several numbers of ranks. Models come from `random_models`, steps of a script's
own from `random_steps`; here are losses, metrics, sources of data and options of `fit`.
"""

from __future__ import annotations

import random

import keras
import numpy as np
import tensorflow as tf

from matex_tf.patches.common import model_state
from tests.support import partition_fuzz
from tests.support.cases import random_models, random_steps
from tests.support.cases.random_models import CLASSES, COLUMNS


def metrics(draw, classes):
    """Metrics for classes or for numbers."""
    m = keras.metrics
    of_classes = [
        "accuracy", lambda: m.SparseCategoricalCrossentropy(from_logits=True),
        lambda: m.MeanIoU(CLASSES, sparse_y_pred=False), lambda: Confusion(),
    ]  # fmt: skip
    of_numbers = [
        "mae", m.RootMeanSquaredError, m.CosineSimilarity, m.MeanAbsolutePercentageError,
        m.LogCoshError, m.MeanSquaredLogarithmicError,
        lambda: m.AUC(from_logits=True, num_thresholds=31), lambda: m.F1Score(average="macro", threshold=0.4),
        lambda: m.Precision(thresholds=[0.3, 0.6]), lambda: m.FBetaScore(beta=0.5),
        lambda: m.SensitivityAtSpecificity(0.5, num_thresholds=21), lambda: m.BinaryAccuracy(),
        lambda: m.MeanMetricWrapper(lambda y, p: tf.reduce_max(tf.abs(y - p), -1), "largest"), lambda: m.Hinge(),
        lambda: m.PearsonCorrelation(), lambda: m.ConcordanceCorrelation(), lambda: m.OneHotMeanIoU(CLASSES),
        lambda: m.AUC(curve="PR", multi_label=True, num_labels=CLASSES, from_logits=True, num_thresholds=21),
    ]  # fmt: skip
    chosen = draw.sample(of_classes if classes else of_numbers, draw.randint(0, 3))
    return [one if isinstance(one, str) else one() for one in chosen]


class Confusion(keras.metrics.Metric):
    """A metric of a script's own: keeps a matrix, and gives a number that is no mean of batches."""

    def __init__(self):
        super().__init__(name="confusion")
        self.matrix = self.add_weight(shape=(CLASSES, CLASSES), initializer="zeros", name="matrix")

    def update_state(self, y, p, sample_weight=None):
        y = tf.reshape(tf.cast(y, tf.int64), [-1])
        self.matrix.assign_add(tf.math.confusion_matrix(y, tf.argmax(p, -1), CLASSES, dtype=self.matrix.dtype))

    def result(self):
        return tf.linalg.trace(self.matrix) / (1.0 + tf.reduce_max(self.matrix))


def loss(draw, classes):
    reduction = draw.choice(["sum_over_batch_size", "sum_over_batch_size", "sum", "mean_with_sample_weight"])
    if classes:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    kinds = ["MeanSquaredError", "Huber", "LogCosh", "CosineSimilarity", "MeanAbsoluteError", "BinaryCrossentropy",
             "KLDivergence", "Dice", "Tversky", "CategoricalFocalCrossentropy", "CategoricalHinge", "own"]  # fmt: skip
    kind = draw.choice(kinds)
    if kind == "own":
        return lambda y, p: tf.reduce_mean((y - p) ** 2) + 0.1 * tf.math.reduce_std(p)
    options = {"from_logits": True} if "rossentropy" in kind else {}
    return getattr(keras.losses, kind)(reduction=reduction, **options)


def optimizer(draw):
    made = partition_fuzz.optimizer(draw)
    if draw.random() < 0.15:
        of = keras.optimizers.schedules
        schedules = [of.ExponentialDecay(0.02, 2, 0.7), of.PiecewiseConstantDecay([2, 4], [0.02, 0.01, 0.005])]
        made = keras.optimizers.SGD(draw.choice(schedules), momentum=0.9)
    if draw.random() < 0.15:
        made = keras.optimizers.LossScaleOptimizer(made, initial_scale=2.0**6, dynamic_growth_steps=2)
    return made


class Rows(keras.utils.PyDataset):
    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def source(draw, rows, batch):
    """The data of a job, as arguments of `fit`.

    Args:
        rows: a tuple of arrays or dicts of arrays: x, y and perhaps weights.
    """
    count = len(tf.nest.flatten(rows)[0])
    pieces = [tf.nest.map_structure(lambda a, i=i: a[i : i + batch], rows) for i in range(0, count, batch)]
    kinds = ["arrays", "arrays", "arrays", "tensors", "tf.data", "tf.data", "mapped", "PyDataset", "generator"]
    kind = draw.choice(kinds)
    if kind in ("arrays", "tensors"):
        x, y, *weights = rows if kind == "arrays" else tf.nest.map_structure(tf.constant, rows)
        options = {"sample_weight": weights[0]} if weights else {}
        shuffle = draw.choice([True, False] if kind == "arrays" else [False])
        return kind, {"x": x, "y": y, "batch_size": batch, "shuffle": shuffle, **options}
    if kind == "PyDataset":
        return kind, {"x": Rows(pieces), "shuffle": draw.choice([True, False])}
    if kind == "generator":
        return kind, {"x": (piece for _ in range(9) for piece in pieces), "steps_per_epoch": len(pieces)}
    data = tf.data.Dataset.from_tensor_slices(rows)
    if draw.random() < 0.4:
        data = data.shuffle(count, seed=draw.randint(0, 99))
    if kind == "mapped":
        data = data.map(lambda *r: (tf.nest.map_structure(lambda a: a * 1.5, r[0]), *r[1:]))
    data = data.batch(batch, drop_remainder=draw.random() < 0.3 and count >= batch)
    options = {}
    if draw.random() < 0.2:
        data, options = data.repeat(), {"steps_per_epoch": max(1, count // batch)}
    return kind, {"x": data.prefetch(1), **options}


def callbacks(draw, validated):
    c, seen = keras.callbacks, []
    some = [
        lambda: c.LearningRateScheduler(lambda epoch, rate: rate * 0.7), lambda: c.TerminateOnNaN(),
        lambda: c.EarlyStopping("loss", patience=0, restore_best_weights=True),
        lambda: c.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append((batch, dict(logs)))),
        *([lambda: c.ReduceLROnPlateau("val_loss", patience=0)] if validated else []),
    ]  # fmt: skip
    return seen, [one() for one in draw.sample(some, draw.randint(0, 2))]


def fitted(seed):
    """What a job of a seed leaves behind; how it was made, for people; whether its steps were shared out."""
    keras.backend.set_floatx("float64")
    keras.mixed_precision.set_global_policy("float64")  # an earlier case has set another one
    draw = random.Random(seed)
    keras.utils.set_random_seed(seed)
    kind = draw.choice(["stacked", "stacked", "functional", "own", "own"])
    generator = np.random.RandomState(seed)
    count, batch, epochs = draw.randint(5, 45), draw.randint(1, 20), draw.choice([1, 2, 2])
    batch = max(batch, count // 5)
    x, labels = generator.rand(count, COLUMNS), generator.randint(0, CLASSES, (count, 1))
    classes = draw.random() < 0.5
    y = labels if classes else np.eye(CLASSES)[labels[:, 0]] * 0.8 + 0.1
    weights, options = [], {}
    if kind == "own":
        model = random_steps.model(draw)
    elif kind == "functional":
        model = random_models.functional(draw)
        x, y = {"a": x, "b": generator.rand(count, COLUMNS)}, {"y": y, "z": generator.rand(count, 2)}
        options["loss"] = {"y": loss(draw, classes), "z": "mse"}
        options["metrics"] = {"y": metrics(draw, classes), "z": ["mae"]}
        options["loss_weights"] = draw.choice([None, {"y": 1.0, "z": 0.3}])
    else:
        model = random_models.stacked(draw)
        options["loss"] = loss(draw, classes)
        options[draw.choice(["metrics", "weighted_metrics"])] = metrics(draw, classes)
        if draw.random() < 0.3:
            weights = [generator.randint(0, 3, count) / 2.0]
    made = random_steps.optimizers(draw, model) if kind == "own" else {"optimizer": optimizer(draw)}
    steps = {"steps_per_execution": draw.choice([1, 1, 1, 2])}
    model.compile(**made, **options, **steps, jit_compile=False)
    name, given = source(draw, (x, y, *weights), batch)
    if kind != "own" and draw.random() < 0.4:
        given["validation_data"] = (x, y)
        given["validation_batch_size"] = draw.choice([3, 7])
    elif kind != "own" and name == "arrays" and count > 9:
        given["validation_split"] = draw.choice([0.0, 0.3])
    if kind == "stacked" and classes and not weights and draw.random() < 0.3 and name in ("arrays", "tf.data"):
        given["class_weight"] = {0: 1.0, 1: 0.5, 2: 2.0, 3: 0.0}
    seen, given["callbacks"] = callbacks(draw, "validation_data" in given)
    what = {"kind": kind, "batches": (count, batch, epochs), "source": name, **_told(given), **_told(options), **steps}
    what["layers"] = [getattr(model, "form", ""), *(type(layer).__name__ for layer in model.layers)]
    what["optimizers"] = {key: _of_optimizer(one) for key, one in made.items()}
    history = model.fit(epochs=epochs, verbose=0, **given).history
    found = {"history": history, "seen": seen, "weights": [np.asarray(one) for one in model.weights]}
    found["slots"] = [np.asarray(v) for one in made.values() for v in one.variables if v.dtype != "string"]
    found["then"] = then(draw.choice(["", "evaluate", "predict", "on batch"]), model, x, y, weights, kind == "own")
    found = tf.nest.map_structure(lambda one: one if isinstance(one, str) else np.asarray(one), found)
    return found, what, bool(model_state.of(model).whole)


def then(what, model, x, y, weights, own):
    """What a model gives after `fit`: each of these is a step of its own to trace."""
    if what == "predict" or what and own:
        return model.predict(x, batch_size=7, verbose=0)
    if what == "evaluate":
        given = {"sample_weight": weights[0]} if weights else {}
        return model.evaluate(x, y, batch_size=7, verbose=0, return_dict=True, **given)
    if what == "on batch":
        two = tf.nest.map_structure(lambda a: a[:2], (x, y))
        logs = model.train_on_batch(*two, return_dict=True), model.test_on_batch(*two, return_dict=True)
        return [*logs, *map(np.asarray, model.weights)]
    return None


def _of_optimizer(one):
    keys = ("learning_rate", "clipnorm", "clipvalue", "global_clipnorm", "weight_decay", "use_ema", "momentum")
    config = {key: value for key, value in one.get_config().items() if key in keys and value}
    return f"{type(one).__name__} {config} accumulate {one.get_config().get('gradient_accumulation_steps')}"


def _told(options):
    """Options as text."""
    told = {}
    for key, value in options.items():
        if key in ("x", "y"):
            continue
        if isinstance(value, dict):
            value = _told(value)
        elif isinstance(value, (list, tuple)) and not isinstance(value, np.ndarray):
            value = [getattr(one, "name", one) if isinstance(one, str) or hasattr(one, "name") else type(one).__name__
                     for one in value]  # fmt: skip
        elif hasattr(value, "get_config"):
            value = f"{type(value).__name__} {value.get_config().get('reduction')}"
        told[key] = value if isinstance(value, (str, int, float, dict, list)) else type(value).__name__
    return told
