"""State that no signature shows: how much there is, and that each says why."""

from __future__ import annotations

import ast

import pytest
from there import of_those

from scripts import state
from scripts.rooms import modules

#: Each that stays, and why it cannot be handed on, or be kept with the object that it is about.
REASONS = {
    "core.sign._asked": "Python calls `give` as the process ends; and `agent.py` has the module without the package",
    "core.trace._timeline": "a span begins wherever time is spent, in any thread, and costs next to nothing without it",
    "core.world._current": "the world of the process, as MPI has one: a script asks for its rank without an argument",
    "core.world._of_thread": "what `alone` has put in its place for one thread",
    "exchange.node.futex._order": "a lock that orders what a processor reads and writes, of all threads",
    "features.gossip.strategy.self._rounds": "the rounds of each model, as long as the strategy is this one",
    "features.gossip.strategy.self._variables": "what they average, for the last of them",
    "features.gossip.strategy.self.spreads": "what they have found, which callbacks read",
    "features.groups.apart.self._rounds": "the rounds of each model, as long as the strategy is this one",
    "features.groups.centered.self._progress": "what tells how far the training of a model is, before it has rounds",
    "features.groups.elastic.self._momentum": "the momentum of each model, as long as the strategy is this one",
    "features.horovod.names.core.process_sets.global_process_set": "`hvd.global_process_set`, a public name",
    "patches.common.under_way._by_thread": "what is under way in each thread, which others ask for in the middle of it",
    "patches.partition.rules.RULES": "a registry, which modules of rules fill as they are imported",
    "readers.formats.netcdf.table._library_lock": "a library that is for one thread at a time has one lock",
    "settings.in_use._current": "the settings of the process, as the environment is that they come from",
    "settings.strategy_registry.STRATEGIES": "a registry, to which a script can add a strategy of its own",
    "state.notes._all": "what is known of objects of Keras, TensorFlow and Python, which cannot hold it for us",
    "state.notes._matex_notes": "the attribute for what an object has to hold, so that it goes with the object",
    "state.run_state._run": "the run that hooks of Keras and TensorFlow belong to, which hand nothing along",
    "strategies.pipe.self._predicted": "the weights guessed for each optimizer, as long as the strategy is this one",
    "strategies.pipe.self._steps": "the steps of each optimizer, as long as the strategy is this one",
}

#: All together, and caches of functions, which forget nothing that cannot be computed again.
MOST, MOST_CACHES = 22, 20


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


def test_how_much():
    """Another one: hand the value on, or keep it with the model, the step, the graph or the run it is of."""
    found = {f"{module}.{name}": kind for kind, module, name in state.found()}
    assert {name for name, kind in found.items() if kind != "cache"} == of_those(REASONS)
    assert len(REASONS) <= MOST
    assert len([kind for kind in found.values() if kind == "cache"]) <= MOST_CACHES


@pytest.mark.parametrize("module", sorted({module for kind, module, _ in state.found() if kind == "global"}))
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


CASES = {
    "global": "a = 1\ndef f():\n    global a\n    a = 2",
    "object": "a = {}\ndef f(b):\n    a[b] = 1",
    "object ": "import threading\na = threading.Lock()",
    "object  ": "class A:\n    def f(self):\n        self.b = 1\na = A()",
    "object   ": "class A:\n    a = []\n    def f(self):\n        self.a.append(1)",
    "weak map": "import weakref\nclass A:\n    def __init__(self):\n        self.a = weakref.WeakSet()",
    "attribute": "NAME = '_matex_a'\ndef f(one):\n    setattr(one, NAME, 1)",
    "attribute ": "def f(one):\n    one._matex_a = 1",
    "attribute  ": "def f(one):\n    one.__dict__['_matex_a'] = 1",
    "attribute   ": "def f(one):\n    object.__setattr__(one, '_matex_a', 1)",
    "attribute    ": "def f(one):\n    vars(one)['_matex_a'] = 1",
    "attribute     ": "def f(one):\n    vars(one).setdefault('_matex_a', {})[1] = 1",
    "cache": "import functools\n@functools.cache\ndef a(): pass",
}
NONE = {
    "constant": "a = {}\ndef f(b):\n    return a[b]",
    "made at import": "a = {}\na['b'] = 1\nfor c in (1, 2):\n    a[c] = 1",
    "local": "a = {}\ndef f():\n    a = {}\n    a['b'] = 1",
    "frozen": "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass A:\n    b: int\na = A(1)",
}


@pytest.mark.parametrize("case", CASES)
def test_found(case):
    trees = {"core.x": ast.parse(CASES[case])}
    assert {kind for kind, _, _ in state.of_trees(trees)} == {case.strip()}


@pytest.mark.parametrize("case", NONE)
def test_not_found(case):
    assert not state.of_trees({"core.x": ast.parse(NONE[case])})


def test_found_from_another_module():
    """A table that is changed where it is imported is no constant."""
    changing = "from matex_tf.core import x\ndef f():\n    x.a.append(1)"
    assert state.of_trees({"core.x": ast.parse("a = []"), "core.y": ast.parse(changing)}) == {("object", "core.x", "a")}
