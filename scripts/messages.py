#!/usr/bin/env python3
"""Every line that the program prints and every error that it raises, as the source has them.

    scripts/messages.py            # the table of all errors, which the site of the docs has below docs/messages.md
    scripts/messages.py lines      # the lines that are no errors; docs/messages.md must have each of them

It reads the source and imports nothing of it. Where a text is no literal, it follows names, arguments, attributes and
functions to the literals that it is made of. What is filled in is `…`.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("matex_tf", "patches", "readers")

#: The page that says more about what the files below these paths print or raise; the longest path counts.
PAGES = {
    "matex_tf/": "running.md",
    "matex_tf/features/groups/": "strategies-reference.md",
    "matex_tf/features/bench/": "benchmarks.md",
    "matex_tf/features/horovod/command.py": "from-horovod.md",
    "matex_tf/core/": "exchange.md",
    "matex_tf/exchange/": "exchange.md",
    "matex_tf/exchange/network/codec.py": "codecs.md",
    "matex_tf/faults/": "faults-reference.md",
    "matex_tf/features/blueprints/": "blueprints-reference.md",
    "matex_tf/features/dynamics/": "surgery.md",
    "matex_tf/features/dynamics/options.py": "dynamics.md",
    "matex_tf/features/dynamics/patches/": "dynamics.md",
    "matex_tf/features/join/": "growing.md",
    "matex_tf/features/join/command.py": "groups.md",
    "matex_tf/features/kube/": "kubernetes.md",
    "matex_tf/features/label/": "label-reference.md",
    "matex_tf/features/label/command.py": "label.md",
    "matex_tf/features/parquet/": "data-reference.md",
    "matex_tf/features/plan/": "planning.md",
    "matex_tf/job/layered.py": "files.md",
    "matex_tf/launch/": "launcher.md",
    "matex_tf/layer/": "files-reference.md",
    "matex_tf/settings/": "settings.md",
    "matex_tf/storage/": "security.md",
    "matex_tf/features/gossip/": "strategies.md",
    "matex_tf/strategies/": "strategies.md",
    "matex_tf/features/stores/": "data-reference.md",
    "matex_tf/features/trace/": "watching.md",
    "matex_tf/features/verify/": "verify.md",
    "matex_tf/features/warm/": "launcher.md",
    "matex_tf/features/watch/": "watching-reference.md",
    "matex_tf/features/watch/command.py": "watching.md",
    "matex_tf/watching/": "watching-reference.md",
    "patches/": "how-it-works.md",
    "patches/across_rows/": "patched-steps.md",
    "patches/checking/": "patched-steps.md",
    "patches/data/": "data.md",
    "patches/division/": "data.md",
    "patches/files/": "files-reference.md",
    "matex_tf/features/horovod/": "horovod-reference.md",
    "matex_tf/features/keras2/": "keras2-reference.md",
    "patches/loops/": "loops.md",
    "patches/recovery/": "faults-reference.md",
    "matex_tf/features/restart/": "faults-reference.md",
    "matex_tf/features/samples/": "samples-reference.md",
    "matex_tf/features/sbatch/": "slurm.md",
    "matex_tf/features/sessions/": "sessions.md",
    "patches/saving/": "files.md",
    "patches/shards/": "sharding-reference.md",
    "patches/sources/": "data.md",
    "patches/turns/": "data.md",
    "readers/": "data.md",
}

#: Errors of Python's own that the source raises with a text of its own.
PYTHONS = frozenset(
    (
        *("AttributeError", "ImportError", "LookupError", "ModuleNotFoundError", "NotImplementedError"),
        *("RuntimeError", "SystemExit", "TypeError", "ValueError", "UsageError"),
    )
)
#: Names of functions and methods that print their first argument, with `matex_tf: ` before it.
PRINTERS = frozenset(("log", "say", "_log", "_say"))
#: What has a method of one of these names, and prints nothing.
NO_PRINTERS = frozenset(("np", "math", "numpy", "logging", "tf", "keras", "ops"))

WORD = re.compile(r"[^\W\d_]{3}")

_DEEPEST = 6  # names of names that are followed
_MOST_ALIKE = 4  # functions of one name that may be meant
_MOST_WAYS = 8  # to fill in a text of several parts
_MOST = 60  # texts that one argument may have


@dataclass(frozen=True, order=True)
class Message:
    """A text of the source.

    Attributes:
        kind: "line" for what is printed while a job goes on, "error", or "result" for what a command prints on stdout.
        text: with `…` for what is filled in.
        file: that has it, from the root of the repository.
    """

    kind: str
    text: str
    file: str

    @property
    def page(self) -> str:
        """The page of docs/ that says more."""
        return PAGES[max((path for path in PAGES if self.file.startswith(path)), key=len)]


@dataclass(eq=False)
class _Function:
    node: ast.AST
    file: str


class Source:
    """The source, and what is known of its names."""

    def __init__(self) -> None:
        self.trees = {
            path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
            for top in FOLDERS
            for path in sorted((ROOT / top).rglob("*.py"))
        }
        self.functions: dict[str, list[_Function]] = defaultdict(list)
        self.calls: dict[str, list[tuple[ast.Call, str]]] = defaultdict(list)
        self.attributes: dict[str, list[tuple[ast.expr, str]]] = defaultdict(list)
        self.parents: dict[ast.AST, ast.AST] = {}
        self.files: dict[ast.AST, str] = {}
        self.errors = {"MatexError"}
        classes: list[ast.ClassDef] = []
        for file, tree in self.trees.items():
            for node in ast.walk(tree):
                self.parents.update((child, node) for child in ast.iter_child_nodes(node))
                self.files[node] = file
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    self.functions[node.name].append(_Function(node, file))
                elif isinstance(node, ast.Call):
                    self.calls[name_of(node.func)].append((node, file))
                elif isinstance(node, ast.ClassDef):
                    classes.append(node)
                elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        for one, value in _pairs(target, node.value):
                            if isinstance(one, ast.Attribute):
                                self.attributes[one.attr].append((value, file))
        bases = {one.name: {name_of(base) for base in one.bases} for one in classes}
        while more := {name for name in bases if bases[name] & self.errors} - self.errors:
            self.errors |= more

    def texts(self, node: ast.AST | None, depth: int = 0) -> Iterator[str]:
        """The texts that an expression can have; `…` is one that cannot be known."""
        if isinstance(node, ast.Constant):
            yield str(node.value)
        elif isinstance(node, ast.JoinedStr):
            yield from self._filled_in(node, depth)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            both = self.some(node.left, depth), self.some(node.right, depth)
            yield from (left + right for left, right in itertools.product(*both))
        elif isinstance(node, ast.IfExp):
            yield from self.texts(node.body, depth)
            yield from self.texts(node.orelse, depth)
        elif isinstance(node, ast.BoolOp):
            for one in node.values:
                yield from self.texts(one, depth)
        elif depth >= _DEEPEST:
            yield "…"
        elif isinstance(node, ast.Name):
            yield from self._of_name(node, depth + 1)
        elif isinstance(node, ast.Attribute):
            for file, tree in self.trees.items():  # a constant of a module
                if file.endswith(f"/{name_of(node.value)}.py"):
                    for value in _assigned(tree, node.attr):
                        yield from self.texts(value, depth + 1)
            for value, file in self.attributes.get(node.attr, ()):
                if file == self.files[node]:
                    yield from (text for text in self.texts(value, depth + 1) if " " in text)
        elif isinstance(node, ast.Call):
            yield from self._of_call(node, depth + 1)
        else:
            yield "…"

    def _filled_in(self, node: ast.JoinedStr, depth: int) -> Iterator[str]:
        """With `…` for what is filled in; where it has no words of its own, with the texts of what is filled in."""
        parts = [[str(part.value)] if isinstance(part, ast.Constant) else ["…"] for part in node.values]
        own = "".join(text for (text,) in parts)
        outermost = depth == 0 or own.startswith(("matex_tf: ", "matex-tf "))
        yield from (
            map("".join, itertools.product(*parts))
            if WORD.search(_without_name(own)) or not outermost
            else (self._expanded(node, parts, depth + 1))
        )

    def _expanded(self, node: ast.JoinedStr, parts: list[list[str]], depth: int) -> Iterator[str]:
        full = [
            self.some(part.value, depth) if isinstance(part, ast.FormattedValue) else text
            for part, text in zip(node.values, parts, strict=True)
        ]
        ways = 1
        for texts in full:
            ways *= len(texts)
        few = ways <= _MOST_WAYS or sum(isinstance(part, ast.FormattedValue) for part in node.values) == 1
        yield from map("".join, itertools.product(*(full if few else parts)))

    def some(self, node: ast.AST | None, depth: int = 0) -> list[str]:
        """The texts of an expression, each once, or `…` alone."""
        return list(dict.fromkeys(itertools.islice(self.texts(node, depth), _MOST))) or ["…"]

    def function_of(self, node: ast.AST) -> ast.AST | None:
        """The function that a node stands in."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return node
        return None

    def _of_name(self, name: ast.Name, depth: int) -> Iterator[str]:
        function = self.function_of(name)
        found = False
        scope: ast.AST | None = function
        while not found:
            within = scope if scope is not None else self._module(name)
            for value in _assigned(within, name.id):
                found = True
                yield from self.texts(value, depth)
            if scope is None:
                break
            places = [one.arg for one in (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)]
            if name.id in places:
                yield from self._of_argument(scope, name.id, places.index(name.id), depth)
                return
            scope = self.function_of(scope)
        if not found:
            yield "…"

    def _of_argument(self, function: ast.AST, name: str, place: int, depth: int) -> Iterator[str]:
        in_class = isinstance(self.parents[function], ast.ClassDef)
        called = self.parents[function].name if function.name == "__init__" else function.name
        alone = len(self.functions[called]) <= 1  # others of its name may be meant
        for call, file in self.calls.get(called, ()) if alone or called.startswith("_") else ():
            if called.startswith("_") and file != self.files[function]:
                continue
            by_name = next((one.value for one in call.keywords if one.arg == name), None)
            at = place - (in_class and isinstance(call.func, (ast.Attribute, ast.Name)))
            if by_name is not None:
                yield from self.texts(by_name, depth)
            elif 0 <= at < len(call.args):
                yield from self.texts(call.args[at], depth)

    def _of_call(self, call: ast.Call, depth: int) -> Iterator[str]:
        name = name_of(call.func)
        if name in ("join", "rstrip", "strip", "replace", "str", "harmless", "shortened", "capitalize"):
            receiver = call.func.value if isinstance(call.func, ast.Attribute) and name != "join" else None
            inner = receiver if name in ("rstrip", "strip", "replace", "capitalize") else (call.args or [None])[0]
            yield from self.texts(inner, depth)
            return
        if name not in self.functions:
            yield "…"
        there = self.functions.get(name, [])
        near = (self.files[call], f"/{name_of(getattr(call.func, 'value', call)).strip('_')}.py")
        here = [function for function in there if function.file.endswith(near)] or there
        for function in here if len(here) <= _MOST_ALIKE else ():
            for node in ast.walk(function.node):
                if isinstance(node, (ast.Return, ast.Yield)) and node.value is not None:
                    yield from self.texts(node.value, depth)

    def _module(self, node: ast.AST) -> ast.AST:
        while node in self.parents:
            node = self.parents[node]
        return node


def name_of(node: ast.AST) -> str:
    """The last part of a name; "" where there is none."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _pairs(target: ast.AST, value: ast.expr) -> Iterator[tuple[ast.AST, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, part in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, part)
    else:
        yield target, value


def _assigned(scope: ast.AST, name: str) -> Iterator[ast.expr]:
    """What is assigned to a name in a function or module, not in the functions inside of it."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        waiting += ast.iter_child_nodes(node)
        targets: Iterable[ast.AST] = ()
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            targets = [node.target]
        elif isinstance(node, ast.For):
            yield from _elements(node, name)
        for target in targets:
            for one, value in _pairs(target, node.value) if node.value is not None else ():
                if isinstance(one, ast.Name) and one.id == name:
                    yield value


def _elements(loop: ast.For, name: str) -> Iterator[ast.expr]:
    """What a loop over what is called, or over a list of literals, gives to a name."""
    if isinstance(loop.target, ast.Name) and loop.target.id == name:
        yield from loop.iter.elts if isinstance(loop.iter, (ast.List, ast.Tuple)) else [loop.iter]


@cache
def messages() -> tuple[Message, ...]:
    """All of them, each once."""
    source = Source()
    found = set()
    for file, tree in source.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                kind, argument = _printed(node, source, file)
                if kind:
                    said = isinstance(argument, ast.Constant)  # and not found by following names
                    for text in source.some(argument):
                        if WORD.search(_tidy(text)) and (said or " " in text.strip()):
                            ends = "error" if re.match(r"(matex_tf: )?error: ", text) else kind
                            found.add(Message(ends, _tidy(text), file))
    return tuple(sorted(found))


def _printed(call: ast.Call, source: Source, file: str) -> tuple[str, ast.AST | None]:
    """What a call prints or raises: the kind, and the expression of its text; "" and None where it does neither."""
    name = name_of(call.func)
    first = call.args[0] if call.args else None
    if getattr(source.function_of(call), "name", "") in ("log", "say") and _hands_on(first):
        return "", None  # the calls of that function count
    if name in source.errors or (name in PYTHONS and isinstance(source.parents[call], ast.Raise)):
        return ("error", first) if first is not None else ("", None)
    if name in PRINTERS and isinstance(call.func, ast.Attribute) and name_of(call.func.value) not in NO_PRINTERS:
        return ("line", first) if first is not None else ("", None)
    if name == "warn" and name_of(getattr(call.func, "value", call)) == "warnings":
        return "line", first
    if name == "write" and name_of(getattr(call.func, "value", call)) == "os" and len(call.args) == 2:
        text = call.args[1]
        if isinstance(text, ast.Call) and name_of(text.func) == "encode" and isinstance(text.func, ast.Attribute):
            return "line", text.func.value
    if name == "print":
        to = next((ast.unparse(one.value) for one in call.keywords if one.arg == "file"), "stdout")
        if isinstance(call.func, ast.Attribute) or to == "stdout":
            return ("result", first) if file.startswith(("matex_tf/cli/", "matex_tf/features/")) else ("", None)
        return ("line", first) if to == "sys.stderr" else ("", None)
    return "", None


def _hands_on(text: ast.AST | None) -> bool:
    """Whether an expression has no words of its own."""
    if not isinstance(text, (ast.Name, ast.JoinedStr)):
        return False
    return not any(WORD.search(_without_name(str(x.value))) for x in ast.walk(text) if isinstance(x, ast.Constant))


def _tidy(text: str) -> str:
    """On one line, without the name of the program before it."""
    text = _without_name(" ".join(re.sub(r"(?<!')\[/?\w*\]", "", text).split()))
    return re.sub(r"…(\s*…)+", "…", text)


def _without_name(text: str) -> str:
    return re.sub(r"^\s*((matex_tf|matex-tf( \w+)?): )?(error: )?", "", text)


def of_kind(*kinds: str) -> list[Message]:
    """The messages of some kinds."""
    return [one for one in messages() if one.kind in kinds]


def all_errors() -> str:
    """The part of docs/messages.md that is made from the source: every error and every result, by page."""
    lines = ["## Every error\n", "Each error says what is wrong and what to do. The page says more.\n"]
    lines += _table("error", "error") + ["\n## What commands print\n"] + _table("result", "line")
    return "\n".join(lines) + "\n"


def _table(kind: str, title: str) -> list[str]:
    rows = sorted({(one.page, one.text) for one in of_kind(kind)})
    return [f"| {title} | page |", "|---|---|", *(f"| {_code(text)} | [{page}]({page}) |" for page, text in rows)]


def _code(text: str) -> str:
    text = text.replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    if sys.argv[1:] == ["lines"]:
        print("\n".join(f"{one.file}: {one.text}" for one in of_kind("line")))
    else:
        print(all_errors(), end="")
