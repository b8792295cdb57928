"""The examples of docs/contributing.md, run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keras
from keras.src.models import model as keras_model

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.py").is_file())


def example(heading: str) -> dict[str, Any]:
    """What the first Python block of a section of the page defines."""
    section = (ROOT / "docs" / "contributing.md").read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    block = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert block, heading
    names: dict[str, Any] = {"__name__": f"example_{heading.replace(' ', '_')}"}
    exec(compile(block[1], heading, "exec"), names)
    return names


def patch() -> int:
    """The lines of a summary that this rank prints."""
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    original, lines = keras.Model.summary, []
    names = example("A patch")
    names.get("install", names.get("apply"))(keras_model)
    try:
        model.summary(print_fn=lines.append)
    finally:
        keras.Model.summary = original
    return len(lines)
