"""Strategies on two clusters of hosts, fast links inside and a slow one between: scripts/bench strategies --groups.

Each strategy trains LeNet on scikit-learn's digits with `fit`, from the same weights, until its accuracy on rows that
it was not trained on is high enough, or for some seconds. The first training of each is thrown away: it compiles.

With --seeds each trains for --epochs epochs from the weights of so many seeds, on ranks of this host, and what counts
is the accuracy at the end. Links do not change it, except for strategies whose groups do not wait for each other.

python -m benchmarks.groups ACCURACY SECONDS ROWS EPOCHS SEEDS "sync" "elastic" …     (under mpirun)
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
from benchmarks import jobs, tables
from benchmarks.training import digits

#: What is compared, and the settings of each: chosen once, and the same for all measurements. What is not said here is
#: the default.
COMPARED: dict[str, dict[str, Any]] = {
    "sync": {"strategy": "sync"},
    "server": {"strategy": "server", "groups": "2"},
    "pipe int8": {"strategy": "pipe", "codec": "int8"},
    "gossip int8": {"strategy": "gossip", "codec": "int8"},
    "elastic": {"strategy": "elastic", "groups": "2"},
    "elastic int8": {"strategy": "elastic", "groups": "2", "codec": "int8"},
    "local": {"strategy": "local", "groups": "2", "local_every": 32},
    "local int8": {"strategy": "local", "groups": "2", "codec": "int8", "local_every": 32},
}
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
    seconds = 0.0 if options.seeds else options.seconds
    words = [options.accuracy, seconds, options.rows, options.epochs if options.seeds else 0, options.seeds or 1]
    line = ["-m", "benchmarks.groups", *map(str, words), *names]
    found: list[dict[str, Any]]
    if options.seeds:
        found = jobs.on_ranks(options.hosts, line)
        show_accuracies(found, options)
        return found
    with emulated.Hosts(options.hosts, options.gbit, clusters=2, between=options.between) as hosts:
        counter = Counter(hosts)
        counter.start()
        found = jobs.on_ranks(options.hosts, line, hosts)
        counter.stop()
    for figure in found:
        figure["between"] = counter.within(figure["begin"], figure["end"]) / figure["steps"]
    show(found, options)
    return found


def chosen(name: str) -> str:
    """The options of a strategy, as a command line has them."""
    given = {key: value for key, value in COMPARED[name].items() if key not in ("strategy", "codec", "groups")}
    return " ".join(f"--{key.replace('_', '-')} {value}" for key, value in given.items())


def show_accuracies(found: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """A line for each strategy: the mean over seeds of the accuracy at the end."""
    by_name: dict[str, list[float]] = {}
    for figure in found:
        by_name.setdefault(figure["strategy"], []).append(100 * figure["accuracy"])
    sync = statistics.mean(by_name["sync"]) if "sync" in by_name else None
    rows = [
        (
            name, chosen(name), f"{statistics.mean(own):.2f}",
            f"{statistics.mean(own) - sync:+.2f}" if sync is not None else "", f"{min(own):.2f} to {max(own):.2f}",
        )
        for name, own in by_name.items()
    ]  # fmt: skip
    title = f"LeNet on digits in 2 groups of {options.hosts // 2} ranks, {options.epochs} epochs"
    note = f"mean over {options.seeds} seeds of the accuracy on rows not trained on"
    tables.show(title, ["strategy", "options", "accuracy, %", "- sync", "spread"], rows, labels=2, note=note)


def show(found: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """A line for each strategy."""
    by_name = {figure["strategy"]: figure for figure in found}
    sync = by_name.get("sync")
    rows = []
    for figure in found:
        reached, against = figure["until"], sync["until"] if sync else None
        faster = f"{against / reached:.1f}" if reached and against else ""
        if sync and reached and not against:
            faster = f"> {options.seconds / reached:.1f}"
        rows.append(
            (
                figure["strategy"], chosen(figure["strategy"]), f"{1e3 * figure['seconds'] / figure['steps']:.0f}",
                f"{figure['between'] / 1e3:,.0f}", f"{sync['between'] / figure['between']:.1f}" if sync else "",
                f"{reached:.1f}" if reached else "not reached", faster, str(figure["steps"]),
                f"{100 * figure['accuracy']:.2f}",
            )
        )  # fmt: skip
    columns = ["strategy", "options", "ms a batch", "KB a batch between", "sync / it", "s to accuracy", "sync / it, s"]
    rates = f"{options.gbit:g} Gbit/s inside, {options.between:g} between"
    title = f"LeNet on 2 clusters of {options.hosts // 2} hosts, {rates}"
    note = f"accuracy {options.accuracy:g} on rows not trained on, or {options.seconds:g} s; one run"
    tables.show(title, [*columns, "batches", "accuracy, %"], rows, labels=2, note=note)


def train(name: str, target: float, most: float, rows: int, epochs: int, seed: int) -> dict[str, Any]:
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

    before = settings.use(settings.Settings().changed(seed=1, notes=False, **COMPARED[name]))
    x, y = digits("lenet")
    held = np.random.RandomState(1).permutation(len(x))
    train_on, test_on = held[360:], held[:360]
    model = models.in_keras("lenet", seed + 7)
    models.compile_keras(model, keras.optimizers.SGD(0.02))
    size = rows * world.size()
    found: dict[str, Any] = {"strategy": name, "until": None}

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
            found.update(seconds=spent, accuracy=accuracy, steps=self.steps)
            if accuracy >= target and found["until"] is None:
                found["until"] = spent
            if not epochs and (found["until"] is not None or spent > most):
                self.model.stop_training = True
            self.mark = time.monotonic()

    start = model.get_weights()
    few = train_on[: 2 * size]
    model.fit(x[few], y[few], batch_size=size, verbose=0, callbacks=[Watch(False)])
    model.set_weights(start)
    watch = Watch(True)
    begin = time.monotonic()
    model.fit(x[train_on], y[train_on], batch_size=size, epochs=epochs or 200, verbose=0, callbacks=[watch])
    found.update(begin=begin, end=time.monotonic())
    settings.use(before)
    return found


def main() -> None:
    target, most, rows, epochs, seeds = float(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:6])
    from matex_tf import patches
    from matex_tf.core import world

    ranks = world.init()
    patches.install(seed=7)
    found = []
    for name in sys.argv[6:]:
        for seed in range(seeds):
            found.append(train(name, target, most, rows, epochs, seed))
            if ranks.rank == 0:
                print(found[-1], file=sys.stderr, flush=True)
    if ranks.rank == 0:
        jobs.tell(found)


if __name__ == "__main__":
    main()
