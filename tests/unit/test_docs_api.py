"""docs/api.md lists what it shows, with the first sentence of each docstring, for readers without the site."""

import importlib
import inspect
import re
from pathlib import Path

import matex_tf

PAGE = next(top for top in Path(__file__).resolve().parents if (top / "setup.py").is_file()) / "docs" / "api.md"
BEGIN, END = "<!-- names -->\n\n", "\n<!-- end of names -->"


def row(name, thing):
    first = re.split(r"\n\n|(?<=[^.]\.) |\n\s*(?:Args|Returns)", inspect.getdoc(thing) or "")[0]
    called = "(…)" if callable(thing) and not inspect.isclass(thing) else ""
    return f"| `{name}{called}` | {' '.join(first.split()).rstrip('.:')} |"


def shown(page):
    """The names on the page, and what they are; those of Horovod and of strategies have pages of their own."""
    directive = r"^::: (\S+)\.(\w+)(?:\n    options:\n(?:      .*\n)*?      members: \[(.*)\])?"
    for module, last, members in re.findall(directive, page.partition("## Horovod")[0], re.MULTILINE):
        if module == "matex_tf" or last == "world":  # a module: its members are names of matex_tf, or of errors
            holder = importlib.import_module(f"{module}.{last}")
            prefix = "matex_tf.errors" if last == "errors" else "matex_tf"
        else:
            holder, prefix = getattr(importlib.import_module(module), last), last
            yield f"matex_tf.{last}" if hasattr(matex_tf, last) else last, holder
        own = [name for name in vars(holder) if inspect.isclass(holder) and not members and name[0] != "_"]
        for name in members.split(", ") if members else own:
            if not name.startswith("_"):
                yield f"{prefix}.{name}", getattr(holder, name)


def table(page):
    return "\n".join(["| name | what it is |", "|---|---|", *(row(*one) for one in shown(page)), ""])


def test_the_table_of_names():
    """`python tests/unit/test_docs_api.py` writes it."""
    page = PAGE.read_text()
    assert page.partition(BEGIN)[2].partition(END)[0] == table(page)


if __name__ == "__main__":
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(text) + END + rest.partition(END)[2])
