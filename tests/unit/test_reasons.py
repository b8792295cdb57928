"""The one list of reasons why ranks do more of the work on data than their part."""

import ast
import pickle
import re
from pathlib import Path

import pytest

from matex_tf.patches.sources import reasons
from matex_tf.patches.sources.reasons import NOTHING, Reason, Why

ROOT = Path(__file__).resolve().parents[2]
#: Where the work on data is divided or not.
ROOMS = (
    *(f"patches/{one}" for one in ("sources", "data", "division", "turns", "loops", "fit")),
    "matex_tf/features/keras2",
)


def used():
    """By name of a reason: the calls in the code, as (file, names of what they are given)."""
    found = {}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Why":
                    assert path.name == "reasons.py", f"{path}: a reason that is not on the list"
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Reason":
                    found.setdefault(node.attr, []).append(path.name)
    return found


def test_each_is_on_the_list_and_used():
    """Code makes no reason of its own (the types say where one is wanted), and the list has none that nobody gives."""
    assert used().keys() == {one.name for one in Reason}


@pytest.mark.parametrize("reason", Reason, ids=lambda one: one.name)
def test_in_words(reason):
    """Each says what its words leave open, is known by its words alone, and travels between ranks."""
    opened = {name: f"<{name}>" for name in re.findall(r"{(\w+)}", reason.words)}
    why = reason(**opened)
    assert "{" not in why and all(one in why for one in opened.values())
    assert reasons.reason_of(pickle.loads(pickle.dumps(why))) is reason and type(pickle.loads(pickle.dumps(why))) is Why
    assert why and not NOTHING


def test_the_docs():
    """docs/data-reasons.md has the list as `python -m matex_tf.patches.sources.reasons` prints it."""
    text = (ROOT / "docs" / "data-reasons.md").read_text()
    assert reasons.table() in text, "put what `python -m matex_tf.patches.sources.reasons` prints into that page"
