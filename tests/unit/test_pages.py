"""`matex-tf help PAGE` shows the pages that messages name."""

import re

import pytest

from matex_tf.cli import pages
from matex_tf.cli.main import main
from scripts import check_docs


@pytest.mark.parametrize("name", ["docs/loops.md", "loops.md", "loops", "measured/step"])
def test_a_page(name, capsys):
    assert main(["help", name]) == 0
    assert capsys.readouterr().out.startswith("# ")


@pytest.mark.parametrize(
    ("name", "near"), [("docs/lops.md", "mean loops?"), ("rum", "mean run?"), ("../setup", "matex-tf help lists")]
)
def test_no_page(name, near, capsys):
    assert main(["help", name]) == 2
    assert f"there is no command and no page {name}" in (said := capsys.readouterr().err) and near in said


def test_every_page_that_a_message_names():
    """They are named as docs/NAME.md, which a user of the wheel can show as they stand."""
    root = check_docs.ROOT
    sources = [path for folder in ("matex_tf", "patches", "readers") for path in (root / folder).rglob("*.py")]
    named = {name for path in sources for name in re.findall(r"docs/[a-z0-9_/-]+\.md", path.read_text())}
    assert len(named) > 10
    for name in named:
        assert pages.text(name).startswith("# ")
