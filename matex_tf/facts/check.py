"""The tables beside the sources of a version: what is missing there, and who needs it."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from matex_tf import features
from matex_tf.facts import keras2, keras3, tensorflow
from matex_tf.facts.fact import Fact, numbers
from matex_tf.facts.sources import Sources


def _of_features() -> Iterator[Fact]:
    """The tables of the features that are installed."""
    for feature in features.found().values():
        module, _, name = feature.facts.partition(":")
        yield from getattr(importlib.import_module(module), name) if module else ()


FACTS = (*keras3.FACTS, *keras2.FACTS, *tensorflow.FACTS, *_of_features())


class Missing(NamedTuple):
    """A name that is not in the sources.

    Attributes:
        name: the module, or the module and what it lacks.
        fact: the row of the table.
    """

    name: str
    fact: Fact


def check(sources: Sources, facts: Sequence[Fact] = FACTS) -> list[Missing]:
    """What the sources lack, of the packages that are there.

    Args:
        sources: of one version of each package.
        facts: rows of the tables; those that are for other versions are left out.
    """
    lacking = []
    for fact in facts:
        if fact.package in sources.packages and _is_expected(fact, sources):
            lacking += [Missing(name, fact) for name in _lacking(fact, sources)]
    return lacking


def report(place: str) -> tuple[list[str], bool]:
    """What `matex-tf doctor --keras` prints of a place, and whether all is there that is needed.

    Raises:
        ValueError: the place holds no sources of Keras, tf_keras or TensorFlow.
    """
    sources = Sources(place)
    lacking = check(sources)
    lines = []
    for missing in sorted(lacking, key=lambda one: one.fact.optional):
        how = "gone, and done without" if missing.fact.optional else "gone"
        lines += [f"{missing.name}: {how}", f"    for: {missing.fact.what}", f"    in: {', '.join(users(missing))}"]
    needed = [missing for missing in lacking if not missing.fact.optional]
    for package in sources.packages:
        names = sum(len(fact.paths()) for fact in FACTS if fact.package == package and _is_expected(fact, sources))
        gone = sum(missing.fact.package == package for missing in needed)
        found = f"{gone} are gone" if gone else "all are there"
        lines.append(f"{package} {sources.version(package) or 'of an unknown version'}: {names} names, {found}")
    return lines, not needed


def users(missing: Missing) -> list[str]:
    """The files that need a name: of those that know its module or its owner, those that have it."""
    name = missing.name.rpartition(".")[2]
    has_name = {file for file, code in _code().items() if name in code.words}
    modules = missing.fact.module.split("|")
    knowing = {file for file, code in _code().items() if code.modules.intersection(modules)}
    owning = {file for file, code in _code().items() if code.words.intersection(missing.fact.owner.split("|"))}
    private = has_name if name.startswith("_") or missing.fact.owner == "*" else set()
    return sorted((has_name & knowing) or (has_name & owning) or private or knowing)


class _Code(NamedTuple):
    """The words of a file, and the modules of other packages that it imports, names or patches."""

    words: frozenset[str]
    modules: frozenset[str]


@functools.cache
def _code() -> dict[str, _Code]:
    """The code of this package by its files, such as "patches/fit/trainer.py", without the tables."""
    texts = dict(_texts())
    patched: dict[str, set[str]] = {}
    for module, patch in re.findall(r'\("([\w.]+)", "([\w.]+)"\)', texts.pop("patches/table.py")):
        patched.setdefault(f"patches/{patch.replace('.', '/')}.py", set()).add(module)
    found = {}
    for file, text in texts.items():
        named = set(re.findall(r"\b(?:tf_)?keras\.[\w.]*\w|\btensorflow\b[\w.]*\b", text)) | patched.get(file, set())
        for module, names in re.findall(r"from ((?:tf_)?keras[\w.]*|tensorflow[\w.]*) import ([\w, ]+)", text):
            named |= {f"{module}.{one.split()[0]}" for one in names.split(",") if one.strip()}
        found[file] = _Code(frozenset(re.findall(r"\w+", text)), frozenset(named))
    return found


def _texts() -> Iterator[tuple[str, str]]:
    here, rooms = Path(__file__).parent, ("patches", "readers")
    for room in ("", *rooms):  # which lie within the package, but not in a checkout of it
        spec = importlib.util.find_spec(f"matex_tf.{room}" if room else "matex_tf")
        for place in (spec and spec.submodule_search_locations) or ():
            for file in sorted(Path(place).rglob("*.py")):
                inner = file.relative_to(place)
                if here not in file.parents and (room or inner.parts[0] not in rooms):
                    yield f"{room or 'matex_tf'}/{inner}", file.read_text("utf-8")


def _is_expected(fact: Fact, sources: Sources) -> bool:
    version = numbers(sources.version(fact.package))
    since, before = numbers(fact.since), numbers(fact.before)
    return not version or (since <= version and (not before or version < before))


def _lacking(fact: Fact, sources: Sources) -> list[str]:
    modules = [module for module in fact.module.split("|") if sources.has_module(module)]
    if not modules:
        return [fact.module]
    owners = fact.owner.split("|")
    if fact.owner not in ("", "*") and not any(sources.has(module, one) for module in modules for one in owners):
        return [f"{modules[0]}.{owners[0]}"]
    return [
        f"{modules[0]}.{paths[0]}"
        for paths in fact.paths()
        if not any(sources.has(module, path) for module in modules for path in paths)
    ]
