"""Strategies on two clusters of hosts, fast links inside and a slow one between: scripts/bench strategies --groups.

Each strategy trains LeNet on scikit-learn's digits with `fit`, from the same weights, until its accuracy on rows that
it was not trained on is high enough, or for some seconds. The first training of each is thrown away: it compiles.

python -m benchmarks.groups ACCURACY SECONDS ROWS SEED "sync" "elastic" …     (under mpirun)
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from typing import Any

import numpy as np

from benchmarks import hosts as emulated
from benchmarks import jobs, tables
from benchmarks.training import digits

#: What is compared, and the settings of each.
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
    names = [name for name in COMPARED if options.only in ("", *COMPARED) or name in options.only.split(",")]
    names = names if {*options.only.split(",")} <= set(COMPARED) else list(COMPARED)
    with emulated.Hosts(options.hosts, options.gbit, clusters=2, between=options.between) as hosts:
        counter = Counter(hosts)
        counter.start()
        words = ["-m", "benchmarks.groups", *map(str, (options.accuracy, options.seconds, options.rows, 0)), *names]
        found: list[dict[str, Any]] = jobs.on_ranks(options.hosts, words, hosts)
        counter.stop()
    for figure in found:
        figure["between"] = counter.within(figure["begin"], figure["end"]) / figure["steps"]
    show(found, options)
    return found


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
                figure["strategy"], f"{1e3 * figure['seconds'] / figure['steps']:.0f}",
                f"{figure['between'] / 1e3:,.0f}", f"{sync['between'] / figure['between']:.1f}" if sync else "",
                f"{reached:.1f}" if reached else "not reached", faster, str(figure["steps"]),
                f"{100 * figure['accuracy']:.2f}",
            )
        )  # fmt: skip
    columns = ["strategy", "ms a batch", "KB a batch between", "sync / it", "s to accuracy", "sync / it, s", "batches"]
    rates = f"{options.gbit:g} Gbit/s inside, {options.between:g} between"
    title = f"LeNet on 2 clusters of {options.hosts // 2} hosts, {rates}"
    note = f"accuracy {options.accuracy:g} on rows not trained on, or {options.seconds:g} s; one run"
    tables.show(title, [*columns, "accuracy, %"], rows, note=note)


def train(name: str, target: float, most: float, rows: int, seed: int) -> dict[str, Any]:
    """One training; times are those of `time.monotonic`, which all processes of a machine share."""
    import keras

    from benchmarks.step import models
    from matex_tf import settings
    from matex_tf.core import world

    before = settings.use(settings.Settings().changed(seed=1, notes=False, **COMPARED[name]))
    x, y = digits("lenet")
    held = np.random.RandomState(1).permutation(len(x))
    train_on, test_on = held[360:], held[:360]
    keras.utils.set_random_seed(seed + 7)
    model = models.in_keras("lenet")
    models.compile_keras(model, keras.optimizers.SGD(0.02))
    size = rows * world.size()
    found: dict[str, Any] = {"strategy": name, "until": None}

    class Watch(keras.callbacks.Callback):
        """Looks after each epoch, and ends the training."""

        def __init__(self, look: bool):
            super().__init__()
            self.look, self.steps, self.spent, self.begin = look, 0, 0.0, time.monotonic()

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.mark = time.monotonic()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.spent += time.monotonic() - self.mark
            if not self.look:
                return
            parts = [self.model(x[low]).numpy().argmax(1) for low in np.array_split(test_on, 4)]
            accuracy = float((np.concatenate(parts) == y[test_on]).mean())
            spent, accuracy = world.current().broadcast((self.spent, accuracy), "share the accuracy")
            found.update(seconds=spent, accuracy=accuracy, steps=self.steps)
            if accuracy >= target and found["until"] is None:
                found["until"] = spent
            if found["until"] is not None or spent > most:
                self.model.stop_training = True

    start = model.get_weights()
    few = train_on[: 2 * size]
    model.fit(x[few], y[few], batch_size=size, verbose=0, callbacks=[Watch(False)])
    model.set_weights(start)
    watch = Watch(True)
    begin = time.monotonic()
    model.fit(x[train_on], y[train_on], batch_size=size, epochs=200, verbose=0, callbacks=[watch])
    found.update(begin=begin, end=time.monotonic())
    settings.use(before)
    return found


def main() -> None:
    target, most, rows, seed = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    from matex_tf import patches
    from matex_tf.core import world

    ranks = world.init()
    patches.install(seed=7)
    found = []
    for name in sys.argv[5:]:
        found.append(train(name, target, most, rows, seed))
        if ranks.rank == 0:
            print(found[-1], file=sys.stderr, flush=True)
    if ranks.rank == 0:
        jobs.tell(found)


if __name__ == "__main__":
    main()
