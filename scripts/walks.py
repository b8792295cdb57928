"""Print a walk through the code: which files it enters, in their order, and by which function first.

    matex-tf run -n 2 scripts/walks.py gradient     a gradient, from the rebuilt step to shared memory and back
    matex-tf run -n 2 scripts/walks.py row          a row of a CSV file, from the file to a batch
    matex-tf run -n 3 --faults shrink scripts/walks.py death    a rank dies in a step

The last one runs its steps eagerly, so that everything is called in one thread, where Python's profiler sees it. In the
first one the profiler is also told of the threads in which TensorFlow calls the exchange.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import keras
import numpy as np

import matex_tf.errors
from matex_tf import DataSet
from matex_tf.core import world
from matex_tf.exchange import tf_op

ROOT = Path(matex_tf.errors.__file__).resolve().parents[1]
#: What every room uses, and every collective of the world, every call of `open` and every import passes: no stations.
EVERYWHERE = (
    *("matex_tf/settings/", "matex_tf/state/", "matex_tf/errors.py", "matex_tf/core/trace.py", "matex_tf/__init__.py"),
    "matex_tf/layer/",  # which not every machine has
)
EVERY_CALL = (
    "matex_tf/core/transport/",
    "matex_tf/core/waiting.py",
    "patches/files/",
    "patches/common/wrapping.py",
    "patches/common/active_flag.py",
    "matex_tf/job/",
    "matex_tf/launch/garbage.py",
    "matex_tf/features/short_names.py",
)


class Walk:
    """The files that are entered, and the function by which each was entered first.

    Args:
        begin: the file, and the end of the name of the function, with which a walk begins, such as
            "patches/keras/optimizer.py: _exchange". The walk ends when that returns. "" to begin at once.
    """

    def __init__(self, begin: str = ""):
        self._begin = begin.split(": ")
        self.entered: dict[str, str] = {}
        self._frame: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and frame is self._frame:
            sys.setprofile(None)
        if event != "call" or not frame.f_code.co_filename.startswith(f"{ROOT}{os.sep}"):
            return
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # a module or a class while it is imported
            return
        file = frame.f_code.co_filename[len(str(ROOT)) + 1 :]
        if file.split(os.sep)[0] not in ("matex_tf", "patches", "readers") or file.startswith(EVERYWHERE):
            return
        if file.startswith(EVERY_CALL):
            return
        name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name).replace("<locals>.", "")
        if self._frame is None and len(self._begin) == 2:
            if file != self._begin[0] or not name.endswith(self._begin[1]):
                return
            self._frame = frame
        if "<" not in name and name != "guess_can_open":  # every format is asked whether a file is its own
            self.entered.setdefault(file, name)

    def __enter__(self) -> Walk:
        sys.setprofile(self)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.setprofile(None)

    def show(self, title: str) -> None:
        """Print the walk, on rank 0."""
        if world.current().rank == 0:
            print(f"{title}: {len(self.entered)} files")
            for file, name in self.entered.items():
                print(f"  {file}: {name}")


def gradient() -> None:
    x, y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
    trained = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    trained.compile("sgd", "mse")
    while_made, while_run = Walk("patches/partition/ranks.py: Ranks.sum"), Walk()
    make_op = tf_op.call

    def call(exchange: Callable[..., Any], *given: Any) -> Any:
        def seen(*arrays: Any) -> Any:
            with while_run:  # of this thread
                return exchange(*arrays)

        return make_op(seen, *given)

    with mock.patch.object(tf_op, "call", call), while_made:
        trained.fit(x, y, batch_size=4, verbose=0)
    while_run.entered.clear()  # of what is set up once
    trained.fit(x, y, batch_size=4, verbose=0)
    while_made.entered |= {file: name for file, name in while_run.entered.items() if file not in while_made.entered}
    while_made.show("a gradient, from the rebuilt step to shared memory and back")


def row() -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write("a,b,label\n" + "".join(f"{i},{i + 1},{i % 2}\n" for i in range(16)))
        file.flush()
        path = world.current().broadcast(file.name, "name the file")
        with Walk() as walk:
            shard = DataSet.open(path)
            data = shard.data
        walk.show("a row of a CSV file, from the file to an array")
        world.current().barrier("keep the file until all have read it")
    del data


class Dies(keras.Model):
    """Its last rank dies in the third step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.steps = keras.layers.Dense(1), 0

    def call(self, x: Any) -> Any:
        return self.layer(x)

    def train_step(self, data: Any) -> Any:
        self.steps += 1
        if self.steps == 3 and world.current().rank == world.current().size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train_step(data)


def death() -> None:
    x, y, trained = np.ones((12, 3), "float32"), np.ones((12, 1), "float32"), Dies()
    trained.compile("sgd", "mse", run_eagerly=True)
    trained.fit(x, y, batch_size=12, epochs=2, verbose=0)
    with Walk("matex_tf/faults/transactions.py: _recover") as walk:
        trained.fit(x, y, batch_size=12, verbose=0)
    walk.show("a rank has died, from the error to the smaller world")


if __name__ == "__main__":
    {"gradient": gradient, "row": row, "death": death}[sys.argv[1]]()
