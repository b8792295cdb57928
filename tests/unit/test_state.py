"""State that no signature shows: which modules have any, and that each says why."""

from __future__ import annotations

import ast

import pytest

from scripts.rooms import modules

#: The modules with variables of their own that functions change: what is one for the process, and nobody can hand on.
WITH_STATE = {
    "core.sign",
    "core.trace",
    "core.world",
    "errors",
    "exchange.tf_op",
    "patches.common.seeds",
    "readers.safety.read_watch",
    "settings.in_use",
    "strategies",
}


def changed(tree: ast.AST) -> set[str]:
    """The names in `global` statements."""
    return {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}


def without_reason(text: str) -> set[str]:
    """Of those names, the ones without a comment at their definition: on its line, or above its block of lines."""
    lines, tree = text.splitlines(), ast.parse(text)
    said = set()
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            above = node.lineno - 1
            while above and lines[above - 1].strip() and not lines[above - 1].startswith("#"):
                above -= 1
            if "#" in lines[node.lineno - 1] or (above and lines[above - 1].startswith("#")):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                said |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return changed(tree) - said


def set_from_outside(text: str) -> list[str]:
    """What a module sets or removes in another one of ours, as in `module.name = value` and `setattr(module, …)`."""
    tree = ast.parse(text)
    ours = {"matex_tf"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            ours |= {alias.asname for alias in node.names if alias.asname and alias.name.startswith("matex_tf.")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "matex_tf":
            package = (node.module or "").partition(".")[2]
            ours |= {
                alias.asname or alias.name for alias in node.names if f"{package}.{alias.name}".lstrip(".") in modules()
            }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            target: ast.expr = node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            target = node.args[0]
        else:
            continue
        while isinstance(target, ast.Attribute):
            target = target.value
        if isinstance(target, ast.Name) and target.id in ours:
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return sorted(found)


def test_who_has_state():
    """A `global` elsewhere: hand the value on, or keep it with the model, the step, the graph or the run it is of."""
    assert {name for name, path in modules().items() if changed(ast.parse(path.read_text()))} <= WITH_STATE


@pytest.mark.parametrize("module", sorted(WITH_STATE & set(modules())))
def test_reason(module):
    """It stands beside the variable."""
    assert not without_reason(modules()[module].read_text())


def test_nothing_is_set_from_outside():
    found = {name: set_from_outside(path.read_text()) for name, path in modules().items()}
    assert not {name: lines for name, lines in found.items() if lines}


def test_the_test():
    """A variable without a reason, and one that another module sets, are seen."""
    text = "# of the process\na = 1\nb = 2  # so is this\n\nc = 3\ndef f():\n    global a, b, c\n    c = 4\n"
    assert without_reason(text) == {"c"}
    text = (
        "from matex_tf import settings\nfrom matex_tf.core import world as w\n"
        "def f(other):\n    settings.x = 1\n    w.y += 1\n    other.z = 1\n    setattr(w, 'y', 2)\n    del w.y\n"
    )
    assert [line.partition(":")[0] for line in set_from_outside(text)] == ["4", "5", "7", "8"]
