"""Strategies on two clusters of hosts, fast links inside and a slow one between: scripts/bench strategies --groups.

Each strategy trains LeNet on scikit-learn's digits with `fit`, from the same weights, until its accuracy on rows that
it was not trained on is high enough, or for some seconds. The first steps of each are thrown away: they compile.

With --seeds each trains the convnet of `scripts/bench gossip --parts digits` from the weights of so many seeds, each
for --epochs epochs, and the accuracy at the end counts too.

python -m benchmarks.groups NAME MODEL ACCURACY SECONDS ROWS EPOCHS SEEDS     (under mpirun)
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from typing import Any

import numpy as np

from benchmarks import hosts as emulated
from benchmarks import launching, tables
from benchmarks.training import digits

DILOCO = {
    "strategy": "local", "groups": "2", "local_every": 32, "outer_learning_rate": 0.7, "outer_momentum": 0.9,
}  # fmt: skip
#: What is compared, and the settings of each: chosen once, and the same for all measurements. What is not said here is
#: the default.
COMPARED: dict[str, dict[str, Any]] = {
    "sync": {"strategy": "sync"},
    "server": {"strategy": "server", "groups": "2"},
    "server int8": {"strategy": "server", "groups": "2", "codec": "int8"},
    "pipe int8": {"strategy": "pipe", "codec": "int8"},
    "gossip int8": {"strategy": "gossip", "codec": "int8"},
    "elastic": {"strategy": "elastic", "groups": "2"},
    "elastic int8": {"strategy": "elastic", "groups": "2", "codec": "int8"},
    "elastic momentum": {"strategy": "elastic", "groups": "2", "elastic_momentum": 0.9},
    "local": {**DILOCO},
    "local int8": {**DILOCO, "codec": "int8"},
    "local int4": {**DILOCO, "codec": "int4"},
}
#: Learning rate and momentum of the script's optimizer. With --elastic-momentum the optimizer has none.
OPTIMIZERS = {"lenet": (0.02, 0.0), "digits": (0.05, 0.9)}
SAMPLES = 0.05  # seconds between two looks at the counters


class Counter(threading.Thread):
    """Reads every now and then how much has gone between the clusters."""

    def __init__(self, hosts: emulated.Hosts):
        super().__init__(daemon=True)
        self._hosts, self._going = hosts, True
        self._seen: list[tuple[float, int]] = []

    def run(self) -> None:
        while self._going:
            self._seen.append((time.monotonic(), self._hosts.between()))
            time.sleep(SAMPLES)

    def stop(self) -> None:
        """Read no more."""
        self._going = False
        self.join()

    def within(self, begin: float, end: float) -> float:
        """Bytes from one time to another, of `time.monotonic`."""
        times, counts = np.array(self._seen).T
        return float(np.interp(end, times, counts) - np.interp(begin, times, counts))


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train with each strategy, and show what it took."""
    names = options.only.split(",") if options.only else list(COMPARED)
    if unknown := [name for name in names if name not in COMPARED]:
        sys.exit(f"scripts/bench strategies --groups: there is no {unknown[0]!r}; --only takes {', '.join(COMPARED)}.")
    model, epochs = ("digits", options.epochs) if options.seeds else ("lenet", 0)
    words = [model, options.accuracy, options.seconds, options.rows, epochs, options.seeds or 1]
    found: list[dict[str, Any]] = []
    with emulated.Hosts(options.hosts, options.gbit, clusters=2, between=options.between) as hosts:
        counter = Counter(hosts)
        counter.start()
        for name in names:
            figures = launching.on_ranks(options.hosts, ["-m", "benchmarks.groups", name, *map(str, words)], hosts)
            for figure in figures:
                figure["between"] = counter.within(figure["begin"], figure["end"])
                print(figure, file=sys.stderr, flush=True)
            found += figures
            tables.keep(found)
        counter.stop()
    show(found, options)
    return found


def chosen(name: str) -> str:
    """The options of a strategy, as a command line has them."""
    given = {key: value for key, value in COMPARED[name].items() if key not in ("strategy", "codec", "groups")}
    return " ".join(f"--{key.replace('_', '-')} {value}" for key, value in given.items())


def show(found: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """A line for each strategy: over its seeds the median of seconds, and the mean of the rest."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for figure in found:
        by_name.setdefault(figure["strategy"], []).append(figure)
    sums = {name: _Summary(figures) for name, figures in by_name.items()}
    sync, rows = sums.get("sync"), []
    for name, own in sums.items():
        faster = f"{sync.reached / own.reached:.1f}" if sync and sync.reached and own.reached else ""
        rows.append(
            (
                name, chosen(name), f"{1e3 * own.seconds:.0f}", f"{own.between / 1e3:,.0f}",
                f"{sync.between / own.between:.1f}" if sync else "",
                f"{own.reached:.1f}" if own.reached else "not reached", faster, str(own.steps),
                f"{own.mean:.2f}", f"{own.mean - sync.mean:+.2f}" if sync else "",
                f"{min(own.accuracies):.2f} to {max(own.accuracies):.2f}",
            )
        )  # fmt: skip
    columns = ["strategy", "options", "ms a batch", "KB a batch between", "sync / it", "s to accuracy", "sync / it, s"]
    columns += ["batches", "accuracy, %", "- sync", "spread"]
    rates = f"{options.gbit:g} Gbit/s inside, {options.between:g} between"
    model = f"convnet, {options.epochs} epochs," if options.seeds else "LeNet"
    title = f"{model} on 2 clusters of {options.hosts // 2} hosts, {rates}"
    seeds = f"{options.seeds} seeds" if options.seeds else f"at most {options.seconds:g} s; one run"
    note = f"accuracy {options.accuracy:g} on rows not trained on; {seeds}"
    tables.show(title, columns, rows, labels=2, note=note)


class _Summary:
    """The trainings of a strategy.

    Attributes:
        seconds, between: of a batch, and bytes between the clusters.
        reached: seconds to the accuracy, the median over the trainings; None where one of them has not reached it.
        accuracies: at the end, %, and their mean.
    """

    def __init__(self, figures: list[dict[str, Any]]):
        self.steps = round(statistics.mean(one["steps"] for one in figures))
        self.seconds = statistics.median(one["seconds"] / one["steps"] for one in figures)
        self.between = sum(one["between"] for one in figures) / sum(one["steps"] for one in figures)
        until = [one["until"] for one in figures]
        self.reached = None if None in until else statistics.median(until)
        self.accuracies = [100 * one["accuracies"][-1] for one in figures]
        self.mean = statistics.mean(self.accuracies)


def train(name: str, model_name: str, target: float, most: float, rows: int, epochs: int, seed: int) -> dict[str, Any]:
    """One training; times are those of `time.monotonic`, which all processes of a machine share.

    Args:
        target, most: the accuracy and the seconds at which it ends, where `epochs` is 0.
        rows: of a rank in each batch.
        epochs: how many there are, whatever is reached; 0 for as many as are needed.
    """
    import keras

    from benchmarks.step import models
    from matex_tf import settings
    from matex_tf.core import world

    before = settings.use(settings.Settings().changed(seed=seed + 1, notes=False, **COMPARED[name]))
    x, y = digits(model_name)
    held = np.random.RandomState(1).permutation(len(x))
    train_on, test_on = held[360:], held[:360]
    model = models.in_keras(model_name, seed + 7)
    rate, momentum = OPTIMIZERS[model_name]
    models.compile_keras(model, keras.optimizers.SGD(rate, 0.0 if "elastic_momentum" in COMPARED[name] else momentum))
    size = rows * world.size()
    found: dict[str, Any] = {"strategy": name, "seed": seed, "until": None, "accuracies": []}

    class Watch(keras.callbacks.Callback):
        """Looks after each epoch, and ends the training. Does nothing before or after a batch: groups would wait there
        for one another, since it might stop the training."""

        def __init__(self, look: bool):
            super().__init__()
            self.look, self.steps, self.spent, self.mark = look, 0, 0.0, time.monotonic()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.spent += time.monotonic() - self.mark
            self.steps += self.params["steps"]
            if not self.look:
                return
            parts = [self.model(x[low]).numpy().argmax(1) for low in np.array_split(test_on, 4)]
            accuracy = float((np.concatenate(parts) == y[test_on]).mean())
            spent, accuracy = world.current().broadcast((self.spent, accuracy), "share the accuracy")
            found.update(seconds=spent, steps=self.steps)
            found["accuracies"].append(accuracy)
            if accuracy >= target and found["until"] is None:
                found["until"] = spent
            if not epochs and (found["until"] is not None or spent > most):
                self.model.stop_training = True
            self.mark = time.monotonic()

    start = model.get_weights()
    few = train_on[: 2 * size]
    model.fit(x[few], y[few], batch_size=size, verbose=0, callbacks=[Watch(False)])
    model.set_weights(start)
    for slot in model.optimizer.variables[2:]:  # behind the count of steps and the learning rate
        slot.assign(np.zeros(slot.shape, slot.dtype))
    watch = Watch(True)
    begin = time.monotonic()
    model.fit(x[train_on], y[train_on], batch_size=size, epochs=epochs or 200, verbose=0, callbacks=[watch])
    found.update(begin=begin, end=time.monotonic())
    settings.use(before)
    return found


def main() -> None:
    name, model, target, most = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
    rows, epochs, seeds = map(int, sys.argv[5:8])
    from matex_tf import patches
    from matex_tf.core import world

    ranks = world.init()
    patches.install(seed=7)
    found = [train(name, model, target, most, rows, epochs, seed) for seed in range(seeds)]
    if ranks.rank == 0:
        launching.tell(found)


if __name__ == "__main__":
    main()
