"""Every message that docs/errors.md quotes occurs in the code."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.py").is_file())
ROWS = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)


@cache
def texts():
    """Every text in the code; what a text is filled in with is a line feed, which no message on a line has."""
    found = set()
    for path in (path for top in ("matex_tf", "patches", "readers") for path in (ROOT / top).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.add("".join(str(part.value) if isinstance(part, ast.Constant) else "\n" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def occurs(message):
    """Whether the parts of a message between its `…` stand in one text of the code, in this order."""
    parts = [part.strip(" .:,;s") for part in message.split("…")]
    pattern = re.compile(".*".join(re.escape(part) for part in parts), re.DOTALL)
    return any(pattern.search(text) for text in texts())


@pytest.mark.parametrize("message", ROWS)
def test_message_occurs(message):
    assert occurs(message)


def test_all_rows_are_seen_and_a_wrong_message_is_found():
    assert len(ROWS) > 50
    assert not occurs("the ranks have gone … mad")
