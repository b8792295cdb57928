"""Every line that the program prints has a row in docs/messages.md or docs/errors.md, and no row is of another text."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from scripts import check_prose

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.py").is_file())
_SPEC = importlib.util.spec_from_file_location("messages", ROOT / "scripts" / "messages.py")
messages = sys.modules["messages"] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(messages)


def rows(page):
    """What the rows of a page quote, with `…` for what is filled in."""
    found = re.findall(r"^\| (`.+?`) \| ", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    return [row.replace("`", "") for row in found]


OF_LINES, OF_ERRORS = rows("messages.md"), rows("errors.md")


def quotes(row, text):
    """Whether a row quotes a text: the whole of it, or so much that no other text could be meant."""
    parts = [part.strip(" .:,;") for part in row.split("…")]
    text = text.replace("`", "")
    if len(re.findall(r"\w", row)) < 10:
        return row == text
    return re.search(".*".join(map(re.escape, parts)), text) is not None


def test_every_line_has_a_row():
    lines = messages.of_kind("line")
    lacking = [f"{one.file}: {one.text}" for one in lines if not any(quotes(r, one.text) for r in OF_LINES + OF_ERRORS)]
    assert not lacking, "docs/messages.md lacks a row for each of these lines, which are printed"
    assert len({one.text for one in lines}) > 130


@pytest.mark.parametrize("row", OF_LINES)
def test_row_is_of_a_line(row):
    assert any(quotes(row, one.text) for one in messages.of_kind("line"))


def test_errors_that_users_meet_most_are_found_in_the_source():
    """The two ways to read the source agree: `test_docs_errors.py` has any text, and this what is raised or printed."""
    known = [one.text for one in messages.messages()]
    unknown = [row for row in OF_ERRORS if not any(quotes(row, text) for text in known)]
    assert len(unknown) < len(OF_ERRORS) / 10, unknown


def test_every_file_has_a_page_that_is_there():
    everything = messages.messages()
    assert len([one for one in everything if one.kind == "error"]) > 500
    assert not {one.page for one in everything if not (ROOT / "docs" / one.page).is_file()}
    unused = [path for path in messages.PAGES if not (ROOT / path).exists()]
    assert not unused


def found_in(tmp_path, monkeypatch, source):
    (tmp_path / "matex_tf").mkdir()
    (tmp_path / "matex_tf" / "a.py").write_text(source)
    monkeypatch.setattr(messages, "ROOT", tmp_path)
    return {(one.kind, one.text) for one in messages.messages.__wrapped__()}


@pytest.mark.parametrize(
    "source, expected",
    [
        ('log_once.log(f"{a} goes " + ("on" if a else "back"))', {("line", "… goes on"), ("line", "… goes back")}),
        ('def f(a):\n    text = f"so it went {a}"\n    ranks.log(text)', {("line", "so it went …")}),
        ('def _say(t):\n    print(f"matex_tf: {t}", file=sys.stderr)\n_say("all is well")', {("line", "all is well")}),
        ('def why():\n    return "no more of it"\nworld.log(why())', {("line", "no more of it")}),
        ('class A(MatexError): pass\nclass B(A): pass\nraise B(f"it is {a} now")', {("error", "it is … now")}),
        ('def damaged(what):\n    return MatexError(f"it {what} now")', {("error", "it … now")}),
        ('raise ValueError("not so many")\nvalue = ValueError("never raised")', {("error", "not so many")}),
        ("x = np.log(4)\nmath.log(y)", set()),
    ],
)
def test_texts_are_followed(source, expected, tmp_path, monkeypatch):
    assert found_in(tmp_path, monkeypatch, source) == expected


def test_messages_read_well():
    """No line and no error has a word that readers stumbled over."""
    found = [
        (one.file, bad[0])
        for one in messages.messages()
        for pattern in check_prose.WORDS
        if (bad := re.search(rf"\b({pattern})\b", one.text, re.IGNORECASE))
    ]
    assert not found
