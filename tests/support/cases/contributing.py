"""The examples of docs/contributing.md, run as they stand there."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
from keras.src.models import model as keras_model

import matex_tf
from matex_tf import settings, strategies
from matex_tf.job import command_line
from matex_tf.patches import table
from matex_tf.readers.formats import registry

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.py").is_file())


def block(heading: str) -> str:
    """The first Python block of a section of the page."""
    section = (ROOT / "docs" / "contributing.md").read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found, heading
    return found[1]


def example(heading: str) -> dict[str, Any]:
    """What the first Python block of a section of the page defines."""
    names: dict[str, Any] = {"__name__": f"example_{heading.replace(' ', '_')}"}
    exec(compile(block(heading), heading, "exec", dont_inherit=True), names)
    return names


@contextlib.contextmanager
def module(heading: str, name: str, folder: str) -> Iterator[ModuleType]:
    """The first Python block of a section, written to a file in a folder and imported from there."""
    place = Path(tempfile.mkdtemp(dir=folder))  # no rank sees a file that another has not written to its end
    (place / f"{name}.py").write_text(block(heading))
    sys.path.insert(0, str(place))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(place))
        sys.modules.pop(name, None)


def patch() -> int:
    """The lines of a summary that this rank prints."""
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    original, lines = keras.Model.summary, []
    names = example("A patch")
    names["install"](keras_model)
    try:
        model.summary(print_fn=lines.append)
    finally:
        keras.Model.summary = original
    return len(lines)


def strategy(folder: str) -> list[dict[str, Any]]:
    """A step of plain SGD on large gradients: the weights after it, how far they moved, and the note.

    The example is a file of its own, and one line registers it. Its option has its default, then is a flag, then a
    variable of the environment.
    """
    with module("A strategy", "clipped", folder) as clipped:
        strategies.STRATEGIES["clipped"] = clipped.Clipped
        try:
            return [step(), step("--clipped-norm", "2"), step(MATEX_CLIPPED_NORM="3")]
        finally:
            del strategies.STRATEGIES["clipped"]


def step(*flags: str, **variables: str) -> dict[str, Any]:
    """One step with the strategy of the page."""
    given = command_line.of_python().parse(["--strategy", "clipped", *flags, "train.py"])
    former = settings.use(settings.Settings.read(given.flags, variables))
    try:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.SGD(1.0), "mse")
        begin = model.get_weights()[0]
        model.fit(100 * np.ones((6, 2), "float32"), np.zeros((6, 1), "float32"), batch_size=6, verbose=0)
        changes = strategies.current().changes
    finally:
        settings.use(former)
    weights = model.get_weights()[0]
    return {"weights": weights.ravel().tolist(), "moved": float(np.linalg.norm(weights - begin)), "changes": changes}


def file_format(path: str, folder: str) -> tuple[list[list[float]], str]:
    """The rows of this rank; and the format under its other name.

    The example is a file of its own, and one line registers it.
    """
    with module("A file format", "flt", folder):
        registry.MODULES.insert(0, "flt")
        try:
            return matex_tf.DataSet.open(path).data.tolist(), registry.named("Float32").name
        finally:
            registry.MODULES.remove("flt")


def step_part(folder: str) -> list[int]:
    """The rows that the part of the page has noted in a `fit` of two epochs: batches of 4, 4 and 2 rows.

    The example is a file of its own, and one line registers it.
    """
    with module("A part of a step", "rows_of_steps", folder) as part:
        table.STEP_PARTS.append("rows_of_steps:RowsOfSteps")
        try:
            model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            model.fit(np.ones((10, 2)), np.ones((10, 1)), batch_size=4, epochs=2, verbose=0, shuffle=False)
            model.evaluate(np.ones((10, 2)), np.ones((10, 1)), verbose=0)
        finally:
            table.STEP_PARTS.pop()
    found: list[int] = part.counted
    return found
