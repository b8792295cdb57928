"""Sources of a package, in a wheel or a directory, and what their modules define: read, and never imported."""

from __future__ import annotations

import ast
import functools
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from matex_tf.facts.fact import numbers

PACKAGES = ("keras", "tf_keras", "tensorflow")
_DEPTH = 12  # names that are imported from module to module


class Sources:
    """The modules of Keras, tf_keras or TensorFlow below one place.

    Args:
        place: a wheel; a directory such as `site-packages`, with the packages in it; or the folder of a package.

    Attributes:
        packages: those that are there, as in the tables: Keras 2 is "tf_keras", also if it is installed as `keras`.

    Raises:
        ValueError: none of them is there.
    """

    def __init__(self, place: str | Path):
        self._place = Path(place)
        self._archive = zipfile.ZipFile(self._place) if self._place.is_file() else None
        self._members = frozenset(self._archive.namelist() if self._archive else ())
        if self._archive is None and self._place.name in PACKAGES and self._has("__init__.py"):
            self._place = self._place.parent
        found = [name for name in PACKAGES if self._has(f"{name}/__init__.py")]
        self._is_keras_2 = "keras" in found and self._has("keras/src/engine/training.py")
        self.packages = {"tf_keras" if name == "keras" and self._is_keras_2 else name: name for name in reversed(found)}
        if not found:
            raise ValueError(f"{place} has none of the packages {', '.join(PACKAGES)}")

    def version(self, package: str) -> str:
        """The version of a package, or "" if nothing says so."""
        name = self.packages[package]
        for file in (f"{name}/src/version.py", f"{name}/src/__init__.py", f"{name}/__init__.py"):
            if found := re.search(r"^__version__ = [\"'](.+)[\"']", self._read(file) or "", re.MULTILINE):
                return found[1]
        entries = self._members if self._archive else os.listdir(self._place)
        infos = (re.match(rf"{name}(?:_\w+)?-([^-/]+)\.dist-info", entry) for entry in entries)
        return next((found[1] for found in infos if found and numbers(found[1])), "")

    def has_module(self, module: str) -> bool:
        """Whether there is such a module or package."""
        return self._file(module) is not None

    def has(self, module: str, path: str) -> bool:
        """Whether a module has a name: of its own, of a class of it or of a base of that, at a dotted path.

        Args:
            path: such as "Layer.call"; "*.name" is any name that the module's code gives to an attribute.
        """
        first, _, rest = path.partition(".")
        if first == "*":
            return re.search(rf"\b{re.escape(rest)}\b", self._text(module) or "") is not None
        return any(True for _ in self._walk(module, [first, *rest.split(".")] if rest else [first], _DEPTH))

    def _walk(self, module: str, path: list[str], depth: int) -> Iterator[None]:
        """One None for each way in which a path can be found in a module."""
        if depth == 0:
            return
        name, rest = path[0], path[1:]
        if self.has_module(f"{module}.{name}"):
            if not rest:
                yield None
            else:
                yield from self._walk(f"{module}.{name}", rest, depth - 1)
        for node in self._names(module).get(name, ()):
            if isinstance(node, ast.ClassDef) and rest:
                yield from self._in_class(module, node, rest, depth - 1)
            elif isinstance(node, tuple):
                yield from self._imported(node, rest, depth - 1)
            elif not rest or not isinstance(node, ast.ClassDef | ast.FunctionDef):
                yield None  # what an assigned value has, nobody can say

    def _imported(self, source: tuple[str, str], rest: list[str], depth: int) -> Iterator[None]:
        module, name = source
        if not name:
            if not rest:
                yield None
            else:
                yield from self._walk(module, rest, depth)
        elif self.has_module(module):
            yield from self._walk(module, [name, *rest], depth)
        elif module.partition(".")[0] not in self.packages.values():
            yield None  # of another package

    def _in_class(self, module: str, cls: ast.ClassDef, path: list[str], depth: int) -> Iterator[None]:
        if path[0] in _members(cls):
            yield None
        for base in cls.bases:
            parts = ast.unparse(base).split(".") if isinstance(base, ast.Name | ast.Attribute) else []
            if parts:
                yield from self._walk(module, [*parts, *path], depth)

    @functools.cache  # noqa: B019 - the sources of one check
    def _names(self, module: str) -> dict[str, list[ast.AST | tuple[str, str]]]:
        """What a module defines or imports, by name: classes, functions, other statements, and (module, name)."""
        found: dict[str, list[ast.AST | tuple[str, str]]] = {}
        text = self._text(module)
        statements = list(ast.parse(text).body) if text else []
        while statements:
            one = statements.pop(0)
            if isinstance(one, ast.ClassDef | ast.FunctionDef):
                found.setdefault(one.name, []).append(one)
            elif isinstance(one, ast.ImportFrom):
                for alias in one.names:
                    place = self._absolute(module, one)
                    if alias.name == "*":
                        for name, nodes in self._names(place).items():
                            found.setdefault(name, []).extend(nodes and [(place, name)])
                    else:
                        found.setdefault(alias.asname or alias.name, []).append((place, alias.name))
            elif isinstance(one, ast.Import):
                for alias in one.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    found.setdefault(name, []).append((alias.name if alias.asname else name, ""))
            else:
                for name in _assigned(one):
                    found.setdefault(name, []).append(one)
                statements += [
                    inner
                    for field in ("body", "orelse", "finalbody", "handlers")
                    for block in getattr(one, field, ())
                    for inner in (block.body if isinstance(block, ast.ExceptHandler) else [block])
                ]
        return found

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return self._named(node.module or "")
        parts = module.split(".")
        file = self._file(module) or ""
        up = node.level - 1 if file.endswith("__init__.py") else node.level
        return ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])

    def _named(self, module: str) -> str:
        """A module as the tables name it."""
        return f"tf_{module}" if self._is_keras_2 and module.partition(".")[0] == "keras" else module

    @functools.cache  # noqa: B019
    def _text(self, module: str) -> str | None:
        file = self._file(module)
        return None if file is None else self._read(file)

    def _file(self, module: str) -> str | None:
        package, _, rest = module.partition(".")
        path = "/".join([self.packages.get(package, package), *rest.split(".")] if rest else [package])
        return next((one for one in (f"{path}.py", f"{path}/__init__.py") if self._has(one)), None)

    def _has(self, file: str) -> bool:
        return file in self._members if self._archive else (self._place / file).is_file()

    def _read(self, file: str) -> str | None:
        if not self._has(file):
            return None
        raw = self._archive.read(file) if self._archive else (self._place / file).read_bytes()
        return raw.decode("utf-8", "replace")


def _assigned(node: ast.AST) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets:
        for one in ast.walk(target) if target is not None else ():
            if isinstance(one, ast.Name):
                yield one.id


@functools.cache
def _members(cls: ast.ClassDef) -> frozenset[str]:
    """What a class defines, and what its methods give to an object."""
    found = set()
    for node in ast.walk(cls):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Call):  # such as setattr(self, "name", ...)
            found |= {
                one.value for one in node.args[:2] if isinstance(one, ast.Constant) and isinstance(one.value, str)
            }
    for node in cls.body:
        found |= set(_assigned(node))
    return frozenset(found)
