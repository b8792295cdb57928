"""What the scores of rows cost a rank: memory, and CPU time beside that of a training step."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from benchmarks import tables
from benchmarks.samples.tasks import TASKS
from benchmarks.samples.train import Clock


def show(rows: int) -> None:
    """Print the table for so many rows."""
    import keras

    from matex_tf.core.world import World
    from matex_tf.features.samples import scoring

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    task = TASKS["higgs"]
    model = task.model(keras, task.width)
    x, y = task.make_data(100 * task.batch)
    model.compile(task.optimizer(keras, len(y), 7), task.loss)
    model.fit(x, y, batch_size=task.batch, epochs=2, verbose=0)
    clock = Clock()
    model.fit(x, y, batch_size=task.batch, epochs=5, verbose=0, callbacks=[clock.callback])
    step = float(np.median(np.diff(clock.times)[::2])) / 100
    values, steps = np.random.default_rng(0).exponential(size=rows).astype(np.float32), -(-rows // task.batch)
    numbers = np.random.default_rng(0).permutation(rows)
    before, begin = resident(), time.process_time()
    scores = scoring.SampleScores(rows)
    for low in range(0, rows, task.batch):
        scores.note(numbers[low : low + task.batch], values[low : low + task.batch])
    noted = time.process_time()
    scores.merge(World())
    merged = time.process_time()
    epoch = scoring.choose(scores.scores, 0.75, 1, 1)
    chosen = time.process_time()
    tags = scoring.tags(epoch.codes, (1, 1))
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
