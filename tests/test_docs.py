"""Docs name tests: each of them is there."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PAGES = sorted([HERE.parent / "README.md", *(HERE.parent / "docs").glob("*.md")])

#: `tests/test_a.py`, `test_a.py::test_b`, and `::test_b` or `…::test_b` after one of those.
REFERENCE = re.compile(r"`(?=[^`\n]*test_)(?:tests/)?(test_\w+\.py)?…?(?:::(test_\w+))?`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_tests_are_there(page):
    missing, file = [], ""
    for name, function in REFERENCE.findall(page.read_text()):
        file = name or file
        path = HERE / file
        if not path.is_file() or (function and not re.search(rf"^def {function}\(", path.read_text(), re.MULTILINE)):
            missing.append(f"{file}::{function}")
    assert not missing
