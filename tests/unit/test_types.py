"""mypy checks every module under its true name, so that a wrong call between packages is refused."""

import shutil
import subprocess
import sys
from pathlib import Path

import matex_tf
from matex_tf.core.world import World
from matex_tf.patches.common.wrapping import require
from matex_tf.readers import DataSet

ROOT = Path(matex_tf.__file__).resolve().parents[1]

FROM_READERS = f"""
from {require.__module__} import require

def rows(count: int) -> int:
    return count

require("keras", "Model")  # not a module
"""
FROM_PATCHES = f"""
from {DataSet.__module__} import DataSet
from matex_tf.readers import planted

DataSet.no_such_method()
planted.no_such_function()
"""
FROM_CORE = f"""
import matex_tf
from matex_tf.patches import planted
from matex_tf.readers.planted import rows
from {World.__module__} import World

rows("three")
planted.no_such_function()
World().exchange.no_such_method()
World().guard.no_such_method()
matex_tf.no_such_name
"""
BENCHMARK = """
from matex_tf.readers.planted import rows

rows("three")
"""


def test_a_wrong_call_between_packages_is_refused(tmp_path):
    """In each package, into each other one, in modules and a sub-package that no list names; from a folder below."""
    for name in ("matex_tf", "patches", "readers", "benchmarks", ".mypy"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    if (ROOT / ".mypy_cache").exists():  # with it mypy takes half a second instead of ten
        shutil.copytree(ROOT / ".mypy_cache", tmp_path / ".mypy_cache")
    (tmp_path / "readers" / "planted.py").write_text(FROM_READERS)
    (tmp_path / "patches" / "planted").mkdir()
    (tmp_path / "patches" / "planted" / "__init__.py").write_text(FROM_PATCHES)
    (tmp_path / "matex_tf" / "planted.py").write_text(FROM_CORE)
    (tmp_path / "benchmarks" / "planted.py").write_text(BENCHMARK)

    # This folder has modules of its own that are called keras and tensorflow.
    below = next((tmp_path / "matex_tf" / "features").glob("horovod/names"), tmp_path)
    ran = subprocess.run([sys.executable, "-m", "mypy"], cwd=below, capture_output=True, text=True)

    assert ran.returncode == 1, ran.stdout + ran.stderr
    found = set()
    for line in ran.stdout.splitlines():
        if ": error: " not in line:
            continue
        if "planted" not in line:  # with other versions of NumPy types differ, but every name is found
            assert not line.endswith(("[attr-defined]", "[name-defined]")), line
            continue
        place, number = line.split(": error: ")[0].rsplit(":", 1)
        file = (below / place).resolve()  # a path that can be opened, from where mypy was started
        found.add((str(file.relative_to(tmp_path)), int(number), line.rsplit("  ", 1)[1]))
    assert found == {
        ("readers/planted.py", 7, "[arg-type]"),
        ("patches/planted/__init__.py", 5, "[attr-defined]"),
        ("patches/planted/__init__.py", 6, "[attr-defined]"),
        ("matex_tf/planted.py", 7, "[arg-type]"),
        ("matex_tf/planted.py", 8, "[attr-defined]"),
        ("matex_tf/planted.py", 9, "[union-attr]"),
        ("matex_tf/planted.py", 10, "[union-attr]"),
        ("matex_tf/planted.py", 11, "[attr-defined]"),
        ("benchmarks/planted.py", 4, "[arg-type]"),
    }, ran.stdout
