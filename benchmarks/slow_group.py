"""What a slow rank costs the others, by strategy: scripts/bench slow_group.

Three ranks, each a group, compute for --compute milliseconds a step (emulated, see benchmarks/accelerator.py). Then one
of them computes three times as long; or all processor time of one of them, with which it adds up, sends and prepares
batches too, is a third of a core (a control group of Linux, cpu.max or cfs_quota_us; root), and each of its steps needs
--work milliseconds of a core. Steps a second of the two others are to stay as they were.

python -m benchmarks.slow_group COMPUTE WORK STEPS FORM "sync" "elastic" …     (under mpirun)
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import accelerator, launching, tables

RANKS, SLOW = 3, 1
NAMES = ("sync", "local", "server", "elastic")
EQUAL, THRICE, THIRD = "equal", "three times as long", "a third of a core"


@contextlib.contextmanager
def third_of_a_core() -> Iterator[Path | None]:
    """A control group whose processes have a third of a core together; None where none can be made."""
    root = Path("/sys/fs/cgroup")
    folder = (root / "cpu" if (root / "cpu").is_dir() else root) / f"matex-slow-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        yield None
        return
    try:
        try:
            if (folder / "cpu.max").exists():
                (folder / "cpu.max").write_text("33000 100000")
            else:
                (folder / "cpu.cfs_quota_us").write_text("33000")
        except OSError:
            yield None
        else:
            yield folder
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def train(name: str, compute: float, work: float, steps: int, form: str) -> float:
    """Steps a second of this rank, from its tenth step to the last one before the epoch ends."""
    import keras
    import numpy as np
    import tensorflow as tf

    from benchmarks.step import models
    from matex_tf import settings, strategies
    from matex_tf.core import world

    ranks = world.current()
    before = settings.use(settings.Settings().changed(seed=1, notes=False, strategy=name))
    strategy, times = strategies.create(), [0.0]
    after_step = strategy.after_step

    def timed(model: Any) -> None:
        after_step(model)
        times.append(time.perf_counter())

    strategy.after_step = timed  # type: ignore[method-assign]
    strategies.use(strategy)

    class Work(keras.layers.Layer):
        """Keeps a core at work for so long."""

        def call(self, x: Any, training: bool = False) -> Any:
            def spin() -> None:
                end = time.thread_time() + work
                while time.thread_time() < end:
                    pass

            if not training or not work:
                return x
            with tf.control_dependencies([tf.py_function(spin, [], [])]):
                return tf.identity(x)

    slow = form == THRICE and ranks.rank == SLOW
    dense = keras.Sequential([keras.Input((64,)), Work(), keras.layers.Dense(64), keras.layers.Dense(10)])
    model = accelerator.slowed(dense, compute * (3 if slow else 1))
    models.compile_keras(model, keras.optimizers.SGD(0.02))
    rows = np.random.default_rng(0).normal(size=(8 * RANKS * steps, 64)).astype(np.float32)
    model.fit(rows, np.zeros(len(rows), np.int32), batch_size=8 * RANKS, verbose=0)
    settings.use(before)
    return (len(times) - 11) / (times[-1] - times[10])


def main() -> None:
    if len(sys.argv) > 4 and sys.argv[4] in (EQUAL, THRICE, THIRD):
        measure_rank()
        return
    parser = tables.parser("slow_group", __doc__)
    parser.add_argument("--compute", type=float, default=40, metavar="MS", help="of a step (default 40)")
    parser.add_argument("--work", type=float, default=10, metavar="MS", help="of a core in a step (default 10)")
    parser.add_argument("--steps", type=int, default=100, help="in an epoch, if all are as fast (default 100)")
    options = tables.parse(parser)
    found: dict[str, dict[str, list[float]]] = {}
    with third_of_a_core() as folder:
        for form in (EQUAL, THRICE, *([THIRD] if folder else [])):
            words = ["-m", "benchmarks.slow_group", str(options.compute / 1e3), str(options.work / 1e3)]
            words += [str(options.steps), form, *NAMES]
            environ = {"MATEX_BENCH_GROUP": str(folder)} if form == THIRD else {}
            found[form] = launching.on_ranks(RANKS, words, environ=environ)
    if folder is None:
        print("a third of a core: skipped, no control group of Linux can be made here (root).")
    rows = []
    for name in NAMES:
        for form, by_name in found.items():
            slow, others = by_name[name][SLOW], [rate for rank, rate in enumerate(by_name[name]) if rank != SLOW]
            equal = [rate for rank, rate in enumerate(found[EQUAL][name]) if rank != SLOW]
            part = 100 * sum(others) / sum(equal)
            cells = (f"{slow:.1f}", f"{sum(others) / len(others):.1f}", f"{part:.0f}")
            rows.append((name, form, *cells))
    columns = ["strategy", f"rank {SLOW}", f"steps/s, rank {SLOW}", "steps/s, others", "of equal ones, %"]
    tables.show("steps a second of ranks beside a slow one", columns, rows, labels=2)
    tables.keep(found)


def measure_rank() -> None:
    """What a rank does."""
    compute, work, steps, form = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    from matex_tf import patches
    from matex_tf.core import world

    ranks = world.init()
    group = os.environ.get("MATEX_BENCH_GROUP", "")
    patches.install(seed=7)
    found: dict[str, list[float]] = {}
    for place, name in enumerate(sys.argv[5:]):
        if group and ranks.rank == SLOW and not place:
            import tensorflow  # noqa: F401 - what it takes to import is not measured

            (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
        found[name] = ranks.allgather(train(name, compute, work, steps, form), "compare steps")
    if ranks.rank == 0:
        launching.tell(found)


if __name__ == "__main__":
    main()
