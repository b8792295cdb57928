"""Rows that wait (`--prune-samples`): rows left out, CPU seconds saved and accuracy, beside all rows and random ones.

Each network is trained with each seed in each way, in turn: plain Keras on all rows; InfoBatch (`loss`); rows left out
by loss without scaled gradients; as many rows left out at random; and all rows, with scores. CPU seconds are those from
the beginning of the first epoch to the end of the last one; the graph of a step has been traced before.

The learning rate falls to 0 along a cosine, and all ways have the same epochs: so many that plain training on all rows
has converged. A training that ends before has fewer steps to learn in with every row that is left out, and Adam's steps
do not become longer where gradients are scaled: that would measure how many steps there were, and not which rows.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import jobs, tables
from benchmarks.apoptosis import tasks

WAYS: dict[str, dict[str, Any]] = {
    "all rows": {"prune_samples": 0.0, "sample_scores": ""},
    "InfoBatch": {},
    "not scaled": {"prune_samples_rescale": False},
    "at random": {"prune_samples_by": "random"},
    "all rows scored": {"prune_samples": 0.0},
}
_FIRST = "all rows"


@dataclass(frozen=True)
class Task:
    """Something to train.

    Attributes:
        make_data: of a number of rows: inputs and labels.
        model: of a width.
        loss: of Keras.
        rows, tested: how many there are to train on, and after them for the test.
        learning_rate: of the first step.
        momentum: of SGD, with which residual networks are trained (He et al. 2016); None: Adam.
    """

    title: str
    make_data: Callable[[int], tuple[np.ndarray, np.ndarray]]
    model: Callable[[Any, float], Any]
    loss: str
    rows: int
    tested: int
    epochs: int
    batch: int
    width: float
    learning_rate: float
    momentum: float | None = None

    def optimizer(self, keras: Any) -> Any:
        """One whose learning rate falls along a cosine to the end of a training."""
        falls = keras.optimizers.schedules.CosineDecay(self.learning_rate, -(-self.rows // self.batch) * self.epochs)
        if self.momentum is None:
            return keras.optimizers.Adam(falls)
        return keras.optimizers.SGD(falls, momentum=self.momentum, nesterov=True)


def digits(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's handwritten digits, 8 x 8."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(7).permutation(len(labels))[:rows]
    return (images[order].reshape(-1, 8, 8, 1) / 16).astype(np.float32), labels[order].astype(np.int32)


def convnet(keras: Any, width: float) -> Any:
    """Two convolutions and a layer of neurons."""
    layers = keras.layers
    convolutions = [layers.Conv2D(int(width * times), 3, activation="relu", padding="same") for times in (1, 2)]
    head = [layers.MaxPooling2D(2), layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dropout(0.3)]
    return keras.Sequential([layers.Input((8, 8, 1)), *convolutions, *head, layers.Dense(10, activation="softmax")])


_SUBJECTS = ["film", "plot", "music", "actor", "ending", "camera", "cast", "scene", "joke", "story"]
_GOOD = ["good", "great", "moving", "funny", "brilliant", "fresh", "clever", "warm"]
_BAD = ["bad", "dull", "boring", "flat", "awful", "stale", "clumsy", "cold"]
_FILLERS = ["rather", "very", "really", "quite", "indeed", "somehow"]
_WORDS = ["", "the", "was", "not", "never", "but", "and", *_SUBJECTS, *_GOOD, *_BAD, *_FILLERS]


def reviews(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Reviews of up to four clauses: what follows the last "but" is the verdict, "not" and "never" turn it round."""
    random, number = np.random.default_rng(7), {word: place for place, word in enumerate(_WORDS)}
    text, labels = np.zeros((rows, 32), np.int32), np.zeros(rows, np.int32)
    for row in range(rows):
        words: list[str] = []
        verdict = 0
        for clause in range(random.integers(1, 5)):
            if clause:
                words.append(("and", "but")[random.integers(2)])
                verdict = 0 if words[-1] == "but" else verdict
            good, turned = bool(random.integers(2)), random.random() < 0.4
            words += ["the", random.choice(_SUBJECTS), "was"]
            words += [("not", "never")[random.integers(2)]] * turned
            words += [random.choice(_FILLERS)] * int(random.random() < 0.5)
            words.append(random.choice(_GOOD if good else _BAD))
            verdict += 1 if good != turned else -1
        if not verdict:
            verdict = 1 if good != turned else -1
        text[row, : len(words)] = [number[word] for word in words]
        labels[row] = verdict > 0
    wrong = random.random(rows) < 0.02
    return text, np.where(wrong, 1 - labels, labels)


def lstm(keras: Any, width: float) -> Any:
    """Embedding, LSTM over what is no padding, and a neuron for each class."""
    layers = keras.layers
    embedding = layers.Embedding(len(_WORDS), 16, mask_zero=True)
    return keras.Sequential(
        [layers.Input((32,), dtype="int32"), embedding, layers.LSTM(int(width)), layers.Dense(2, activation="softmax")]
    )


def resnet(keras: Any, width: float) -> Any:
    """The small residual network of the other benchmarks, on images that a first layer makes half as large."""
    small = keras.models.clone_model(tasks.resnet(keras, width), input_tensors=keras.Input((16, 16, 3)))
    return keras.Sequential([keras.layers.Input((32, 32, 3)), keras.layers.AveragePooling2D(2), small])


_CLASSES = "sparse_categorical_crossentropy"
TASKS = {
    "digits": Task("digits, convnet", digits, convnet, _CLASSES, 1438, 359, 30, 64, 32, 1e-3),
    "higgs": Task(
        "collisions, MLP", tasks.higgs_data, tasks.higgs_model, "binary_crossentropy", 80000, 30000, 16, 1000, 128, 1e-3
    ),
    "resnet": Task("images, ResNet", tasks.images_data, resnet, _CLASSES, 1000, 1000, 20, 32, 1, 0.05, 0.9),
    "lstm": Task("reviews, LSTM", reviews, lstm, _CLASSES, 3200, 2000, 40, 64, 32, 4e-3),
}


class Clock:
    """The CPU seconds of the process at the ends of epochs."""

    def __init__(self) -> None:
        import keras

        self.times: list[float] = []
        self.callback = keras.callbacks.LambdaCallback(on_epoch_begin=self._note, on_epoch_end=self._note)

    def _note(self, epoch: int, logs: Any) -> None:
        self.times.append(time.process_time())


def measure(task: Task, seeds: int, rate: float, wanted: list[str]) -> None:
    """On a rank: of each way and seed CPU seconds, accuracy of the test, and rows used."""
    import keras

    from matex_tf import settings

    x, y = task.make_data(task.rows + task.tested)
    (x, y), test = (x[: task.rows], y[: task.rows]), (x[task.rows :], y[task.rows :])
    chosen = settings.current()
    found: dict[str, list[dict[str, float]]] = {way: [] for way in wanted}
    for seed in range(seeds):
        ways = [(way, WAYS[way]) for way in wanted]
        for way, changes in ways[seed % len(ways) :] + ways[: seed % len(ways)]:
            settings.use(chosen.changed(**{"prune_samples": rate, **changes}))
            keras.backend.clear_session()
            keras.utils.set_random_seed(100 + seed)
            model = task.model(keras, task.width)
            model.compile(task.optimizer(keras), task.loss, metrics=["accuracy"])
            model.optimizer.build(model.trainable_variables)
            begin = [np.array(variable) for variable in model.variables + model.optimizer.variables]
            few = 5 * task.batch // 2  # traces the step, also for a last batch that is not full
            model.fit(x[:few], y[:few], batch_size=task.batch, verbose=0)
            for variable, value in zip(model.variables + model.optimizer.variables, begin, strict=True):
                variable.assign(value)
            keras.utils.set_random_seed(200 + seed)
            clock = Clock()
            history = model.fit(x, y, batch_size=task.batch, epochs=task.epochs, verbose=0, callbacks=[clock.callback])
            seconds = clock.times[-1] - clock.times[0]
            accuracy = model.evaluate(*test, batch_size=500, verbose=0)[1]
            used = sum(history.history.get("rows_used", [len(y)] * task.epochs)) / (len(y) * task.epochs)
            found[way].append({"seconds": seconds, "accuracy": accuracy, "used": used})
            print(f"{task.title} seed {seed} {way}: {found[way][-1]}", file=sys.stderr, flush=True)
    jobs.tell(found)


def cost(rows: int) -> None:
    """Print what the scores of so many rows cost a rank: memory, and CPU time beside that of a training step."""
    import keras

    from matex_tf.core.world import World
    from matex_tf.dynamics import samples

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    task = TASKS["higgs"]
    model = task.model(keras, task.width)
    model.compile(task.optimizer(keras), task.loss)
    x, y = task.make_data(100 * task.batch)
    model.fit(x, y, batch_size=task.batch, epochs=2, verbose=0)
    clock = Clock()
    model.fit(x, y, batch_size=task.batch, epochs=5, verbose=0, callbacks=[clock.callback])
    step = float(np.median(np.diff(clock.times)[::2])) / 100
    values, steps = np.random.default_rng(0).exponential(size=rows).astype(np.float32), -(-rows // task.batch)
    numbers = np.random.default_rng(0).permutation(rows)
    before, begin = resident(), time.process_time()
    scores = samples.SampleScores(rows)
    for low in range(0, rows, task.batch):
        scores.note(numbers[low : low + task.batch], values[low : low + task.batch])
    noted = time.process_time()
    scores.merge(World())
    merged = time.process_time()
    epoch = samples.choose(scores.scores, 0.75, 1, 1)
    chosen = time.process_time()
    tags = samples.tags(epoch.codes, (1, 1))
    ordered, grown = time.process_time(), resident() - before
    share = 100 * (ordered - begin) / steps / step
    parts = [noted - begin, merged - noted, chosen - merged, ordered - chosen, ordered - begin]
    table = (scores.nbytes + epoch.codes.nbytes) / 1e6
    note = f"{rows:,} rows, batches of {task.batch}; a step of an MLP takes {1e3 * step:.1f} ms"
    print(f"tables {table:.1f} MB, the order of an epoch {tags.nbytes / 1e6:.1f} MB, resident memory +{grown:.1f} MB")
    names = ["noted in steps", "merged", "chosen", "shuffled", "together"]
    cells = [
        [name, f"{1e3 * part:.0f}", f"{100 * part / steps / step:.2f} %"]
        for name, part in zip(names, parts, strict=True)
    ]
    tables.show("what scores cost an epoch", ["scores are", "CPU ms", "of its steps"], cells, note=note)
    tables.keep({"rows": rows, "tables": table, "resident": grown, "share": share, "step": step})


def main() -> int:
    parser = tables.parser("samples", __doc__)
    parser.add_argument("--tasks", default=",".join(TASKS), help="with commas between: " + ", ".join(TASKS))
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each way (default 5)")
    parser.add_argument("--rate", type=float, default=0.75, help="of --prune-samples (default 0.75)")
    parser.add_argument("--ways", default=",".join(WAYS), help="with commas between: " + ", ".join(WAYS))
    parser.add_argument("--cost", type=int, metavar="ROWS", help="memory and CPU time of the scores of so many rows")
    parser.add_argument("--rank", default="", help=argparse.SUPPRESS)
    options = tables.parse(parser)
    if options.cost:
        cost(options.cost)
        return 0
    if options.rank:
        measure(TASKS[options.rank], options.seeds, options.rate, options.ways.split(","))
        return 0
    figures: dict[str, Any] = {}
    rows = []
    for name in options.tasks.split(","):
        words = ["-m", "matex_tf", "-m", "benchmarks.samples", "--rank", name]
        words += ["--seeds", str(options.seeds), "--rate", str(options.rate), "--ways", options.ways]
        with tempfile.TemporaryDirectory() as folder:
            given = {"MATEX_SAMPLE_SCORES": os.path.join(folder, "scores.csv"), "TF_CPP_MIN_LOG_LEVEL": "3"}
            figures[name] = found = jobs.on_ranks(1, words, environ=given)
        rows += [line(TASKS[name].title, way, found) for way in options.ways.split(",")]
        tables.keep({"rate": options.rate, "seeds": options.seeds, "tasks": figures})
    columns = ["network", "rows", "left out", "CPU seconds", "of all rows", "accuracy %", "spread", "difference"]
    note = f"R {options.rate:g}, {options.seeds} seeds; spread: the standard deviation among seeds"
    tables.show("training on fewer rows", columns, rows, labels=2, less=["CPU seconds", "of all rows"], note=note)
    return 0


def line(title: str, way: str, found: dict[str, list[dict[str, float]]]) -> list[str]:
    """A line of the table. Times are ratios of what was measured in turn, so what else the machine does cancels."""
    own, whole = found[way], found[_FIRST]
    ratio = np.median([a["seconds"] / b["seconds"] for a, b in zip(own, whole, strict=True)])
    accuracy, of_all = (100 * np.array([one["accuracy"] for one in each]) for each in (own, whole))
    spread = accuracy.std(ddof=1) if len(accuracy) > 1 else 0.0
    left = 100 * (1 - np.mean([one["used"] for one in own]))
    seconds = np.median([one["seconds"] for one in own])
    numbers = [f"{left:.1f} %", f"{seconds:.1f}", f"{ratio:.2f}", f"{accuracy.mean():.2f}", f"{spread:.2f}"]
    return [title, way, *numbers, f"{accuracy.mean() - of_all.mean():+.2f}"]


if __name__ == "__main__":
    sys.exit(main())
