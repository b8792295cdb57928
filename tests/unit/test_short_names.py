"""Modules of features under their short names."""

import importlib
import subprocess
import sys

import pytest
from there import case


@pytest.mark.parametrize("name", [case("plan", "plan"), case("plan", "plan.command"), case("label", "label.store")])
def test_the_same_module(name):
    """Whichever name is imported first."""
    code = f"import {{0}} as a, {{1}} as b; assert a is b, (a, b); assert a.__spec__.name == a.__name__ == {name!r}"
    names = f"matex_tf.{name}", f"matex_tf.features.{name}"
    code = code.replace(repr(name), repr(names[1]))
    for pair in (names, names[::-1]):
        done = subprocess.run([sys.executable, "-c", code.format(*pair)], capture_output=True, text=True, timeout=120)
        assert not done.returncode, done.stderr


def test_no_other():
    """A name that no feature has is an error as ever."""
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'matex_tf\.nothing'"):
        importlib.import_module("matex_tf.nothing")


def test_import_is_light():
    """`import matex_tf` makes the short names known, and reads no feature for it: nor what a registry needs."""
    code = "import sys; before = set(sys.modules); import matex_tf; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    loaded = done.stdout.split()
    assert [one for one in loaded if one.startswith("matex_tf.")] == [
        "matex_tf.features",
        "matex_tf.features.short_names",
        *("matex_tf.state", "matex_tf.state.run_state"),
    ]
    assert not {"dataclasses", "inspect", "numpy", "pathlib"}.intersection(loaded)
