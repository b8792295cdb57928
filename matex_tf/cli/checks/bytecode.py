"""Whether what every rank imports is compiled: else each process compiles TensorFlow and Keras anew."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from matex_tf.cli.checks.finding import Finding

PACKAGES = ("tensorflow", "keras", "matex_tf")
#: The part of a package's files that may be without bytecode, such as templates and tests that no rank imports.
_REST = 0.1


def findings() -> list[Finding]:
    """A line of the table."""
    missing = {name: folder for name in PACKAGES for folder in folders(name) if not is_compiled(folder)}
    if not missing:
        return [Finding("Bytecode", "compiled")]
    names = " and ".join(missing)
    kept = sys.pycache_prefix is None and [folder for folder in missing.values() if not os.access(folder, os.W_OK)]
    places = " ".join(str(folder) for folder in missing.values())
    if sys.dont_write_bytecode:
        why = "and PYTHONDONTWRITEBYTECODE is set: unset it, or run"
    elif kept:
        why = f"and nothing can be written to {kept[0]}: set PYTHONPYCACHEPREFIX to a folder of this node, or run there"
    else:
        return [Finding("Bytecode", f"of {names} not yet compiled: the first import does that")]
    advice = (
        f"every process compiles {names} again, which takes longer than the import itself, {why}: "
        f"{sys.executable} -m compileall -q {places}"
    )
    return [Finding("Bytecode", f"{names} not compiled", "check", advice)]


def folders(name: str) -> list[Path]:
    """Where the modules of a package lie; nowhere if it is not installed."""
    spec = importlib.util.find_spec(name)
    return [] if spec is None or spec.origin is None else [Path(spec.origin).parent]


def is_compiled(folder: Path) -> bool:
    """Whether the modules of a folder have bytecode for this Python, up to a few."""
    seen = without = 0
    for module in _modules(folder):
        seen += 1
        without += not os.path.exists(importlib.util.cache_from_source(module))
    return without <= _REST * seen


def _modules(folder: Path) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        yield from (os.path.join(place, name) for name in names if name.endswith(".py"))
