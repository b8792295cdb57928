"""What a process remembers that no signature shows, found in the sources.

`python scripts/state.py` prints it: the module, the name, and which kind of state it is.

- `global`: a name that functions bind anew.
- `object`: a name of a module, or of the body of a class, for an object that something in the tree changes, or that is
  not known to be constant. A table that nothing changes is a constant, whatever its type is.
- `weak map`: one that an object of ours holds.
- `attribute`: one of ours, set on an object that is not.
- `cache`: of a function, which remembers what it was asked.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.rooms import modules

_CHANGES = frozenset(
    (
        *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft"),
        *("remove", "setdefault", "sort", "update", "difference_update", "intersection_update"),
    )
)
_DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
_TABLES = frozenset(("dict", "list", "set", "bytearray", "deque", "defaultdict", "Counter", "OrderedDict"))
#: Calls that give what does not change, by their last names.
_CONSTANT = frozenset(
    (
        *("TypeVar", "compile", "frozenset", "tuple", "range", "Struct", "Path", "with_name", "int", "encode"),
        *("dirname", "dtype", "int32", "uint32", "sysconf", "TensorSpec", "nullcontext", "auto", "option", "field"),
        *("staticmethod", "time", "find_spec", "import_module", "CDLL", "addressof", "MappingProxyType"),
    )
)


@cache
def found() -> list[tuple[str, str, str]]:
    """Kind, module and name of each."""
    return sorted(of_trees({name: ast.parse(path.read_text()) for name, path in modules().items()}))


def of_trees(trees: dict[str, ast.Module]) -> set[tuple[str, str, str]]:
    """The same, of these modules."""
    changed = _changed(trees)
    result = set()
    for module, tree in trees.items():
        names = set()
        for owner, target, value in _bound(tree):
            name = f"{owner}.{target}".lstrip(".")
            if _is_state(value, (module, name) in changed, module, trees):
                names.add(name)
        for node in _nodes(tree):
            if isinstance(node, ast.Global):
                result |= {("global", module, name) for name in node.names}
        result |= {("object", module, name) for name in names if ("global", module, name) not in result}
        result |= {("weak map", module, name) for name in _weak_maps(tree) - names}
        result |= {("cache", module, name) for name in _caches(tree)}
        result |= {("attribute", module, name) for name in _set_on_others(module, trees)}
    return result


@cache
def _nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def _bound(tree: ast.Module) -> Iterator[tuple[str, str, ast.expr]]:
    """Class (or nothing), name and value of what modules and bodies of classes bind as they are imported."""
    rest: list[tuple[str, ast.stmt]] = [("", node) for node in tree.body]
    while rest:
        owner, node = rest.pop()
        if isinstance(node, ast.ClassDef):
            rest += [(f"{owner}.{node.name}".lstrip("."), inner) for inner in node.body]
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.For)):
            parts = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
            parts += [handler.body for handler in getattr(node, "handlers", [])]
            rest += [(owner, inner) for part in parts for inner in part]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs: Iterable[tuple[ast.expr, ast.expr]] = zip(target.elts, node.value.elts, strict=True)
                elif isinstance(target, ast.Tuple):
                    pairs = [(one, node.value) for one in target.elts]
                else:
                    pairs = [(target, node.value)]
                yield from ((owner, one.id, value) for one, value in pairs if isinstance(one, ast.Name))


def _is_state(value: ast.expr, changed: bool, module: str, trees: dict[str, ast.Module]) -> bool:
    if isinstance(value, _DISPLAYS):
        return changed
    if not isinstance(value, ast.Call):
        return False
    maker = ast.unparse(value.func).rpartition(".")[2]
    if maker in _TABLES:
        return changed
    if maker in _CONSTANT:
        return False
    function = value.func
    if isinstance(function, ast.Subscript):
        function = function.value
    made = _definition(module, function, trees)
    if isinstance(made, ast.ClassDef):
        return changed or _changes_itself(made)
    return not (isinstance(made, ast.FunctionDef) and not changed)


def _definition(module: str, function: ast.expr, trees: dict[str, ast.Module]) -> ast.stmt | None:
    """The class or function of ours that is called."""
    parts = ast.unparse(function).split(".")
    target = _imports(trees[module]).get(parts[0])
    place, names = (target, parts[1:]) if target is not None else (module, parts)
    while names and f"{place}.{names[0]}".lstrip(".") in trees:
        place, names = f"{place}.{names[0]}".lstrip("."), names[1:]
    if place not in trees:
        place, _, name = place.rpartition(".")
        names = [name]
    for node in getattr(trees.get(place), "body", []):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and names == [node.name]:
            return node
    return None


@cache
def _imports(tree: ast.Module) -> dict[str, str]:
    """What each name that is imported of ours stands for, without `matex_tf.`."""
    result = {}
    for node in _nodes(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "matex_tf":
            package = (node.module or "").partition(".")[2]
            result |= {alias.asname or alias.name: f"{package}.{alias.name}".lstrip(".") for alias in node.names}
        elif isinstance(node, ast.Import):
            result |= {
                alias.asname: alias.name.partition(".")[2]
                for alias in node.names
                if alias.asname and alias.name.startswith("matex_tf.")
            }
    return result


def _changes_itself(one: ast.ClassDef) -> bool:
    """Whether objects of a class can change: its methods change them, or it is a dataclass that is not frozen."""
    decorators = " ".join(ast.unparse(decorator) for decorator in one.decorator_list)
    if "dataclass" in decorators:
        return "frozen=True" not in decorators
    methods = [
        node for node in one.body if isinstance(node, ast.FunctionDef) and node.name not in ("__init__", "__new__")
    ]
    if any(name.startswith("self.") for method in methods for name, _ in _changes_in(method)):
        return True
    return any(ast.unparse(base).rpartition(".")[2] == "local" for base in one.bases)


def _changes_in(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What a piece of code changes, as it writes it: `name`, `module.name`, `self.name`."""
    for node in _nodes(tree):
        target: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
            target = node.func.value
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
            target = node.value
        elif isinstance(node, ast.AugAssign):
            target = node.target
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield ast.unparse(node), node
            target = node.value
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, (ast.Name, ast.Attribute)):
            yield ast.unparse(target), node


def _changed(trees: dict[str, ast.Module]) -> set[tuple[str, str]]:
    """Module and name of what something in the tree changes."""
    result = set()
    for module, tree in trees.items():
        imports = _imports(tree)
        for owner, part, local in _scopes(tree):
            for text, _ in _changes_in(part):
                first, *rest = text.split(".")
                if first in ("self", "cls") and owner and rest:
                    result.add((module, f"{owner}.{rest[0]}"))
                elif first in local:
                    continue
                elif first in imports:
                    place, names = imports[first], rest
                    while names and f"{place}.{names[0]}" in trees:
                        place, names = f"{place}.{names[0]}", names[1:]
                    if place not in trees:
                        place, _, name = place.rpartition(".")
                        names = [name, *names]
                    result |= {(place, ".".join(names[:count])) for count in (1, 2)}
                else:
                    result |= {(module, first), (module, ".".join((first, *rest[:1])))}
    return result


def _scopes(tree: ast.Module) -> Iterator[tuple[str, ast.AST, set[str]]]:
    """Class (or nothing), code and local names of functions and methods; not of what is done at import."""
    rest: list[tuple[str, ast.AST]] = [("", node) for node in tree.body]
    while rest:
        owner, node = rest.pop()
        if isinstance(node, ast.ClassDef):
            rest += [(f"{owner}.{node.name}".lstrip("."), inner) for inner in node.body]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            nodes = _nodes(node)
            ours = {name for inner in nodes if isinstance(inner, ast.Global) for name in inner.names}
            local = {inner.arg for inner in nodes if isinstance(inner, ast.arg)}
            local |= {inner.id for inner in nodes if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)}
            yield owner, node, local - ours
        elif owner == "":
            rest += [("", inner) for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt)]


def _weak_maps(tree: ast.Module) -> set[str]:
    """The names that weak maps are bound to, of objects as well."""
    result = set()
    for node in _nodes(tree):
        made = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if isinstance(made, ast.Call) and ast.unparse(made.func).rpartition(".")[2].startswith("Weak"):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            result |= {ast.unparse(target) for target in targets}
    return result


def _caches(tree: ast.Module) -> set[str]:
    result = set()
    for node in _nodes(tree):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                made = decorator.func if isinstance(decorator, ast.Call) else decorator
                if ast.unparse(made).rpartition(".")[2] in ("cache", "lru_cache"):
                    result.add(node.name)
    return result


def _set_on_others(module: str, trees: dict[str, ast.Module]) -> set[str]:
    """The attributes with our name in theirs that a module sets."""
    result = set()
    for node in _nodes(trees[module]):
        name: ast.expr | str | None = None
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("setattr", "__setattr__"):
            name = node.args[1]
        elif isinstance(node, ast.Call) and re.search(r"(__dict__|^vars\(.*\))\.setdefault$", ast.unparse(node.func)):
            name = node.args[0]
        elif isinstance(node, ast.Subscript) and re.search(r"__dict__$|^vars\(", ast.unparse(node.value)):
            name = node.slice if isinstance(node.ctx, ast.Store) else None
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        if isinstance(name, ast.expr):
            name = _text(module, name, trees)
        if name and "matex" in name:
            result.add(name)
    return result


def _text(module: str, node: ast.expr, trees: dict[str, ast.Module]) -> str | None:
    """The value of a string, or of a name for one."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    first, *rest = ast.unparse(node).split(".")
    place = _imports(trees[module]).get(first)
    name = first
    if place is not None:
        place, name = (place, rest[0]) if rest else (place.rpartition(".")[0], place.rpartition(".")[2])
    for owner, target, value in _bound(trees.get(module if place is None else place, ast.Module([], []))):
        if not owner and target == name and isinstance(value, ast.Constant):
            return str(value.value)
    return None


if __name__ == "__main__":
    everything: dict[str, list[str]] = defaultdict(list)
    for kind, module, name in found():
        everything[kind].append(f"{module}.{name}")
    for kind, names in everything.items():
        print(f"{kind}: {len(names)}", *names, sep="\n  ")
