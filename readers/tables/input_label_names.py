"""Which arrays of a file are the inputs and which the labels: as named, or found by the names that people use."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matex_tf.errors import DataError, listed, quoted

#: Names of inputs, each with the names of labels that go with it. Compared in small letters.
PAIRS = (
    (("x",), ("y",)),
    (("data", "images", "image"), ("labels", "label")),
    (("features",), ("labels", "label", "targets", "target")),
    (("inputs", "input"), ("targets", "target", "labels", "label", "outputs", "output")),
    (("x_train", "train_x"), ("y_train", "train_y")),
    (("train_data", "train_images"), ("train_labels",)),
)

#: Every name that stands for inputs or labels somewhere in `PAIRS`.
USUAL = frozenset(name for sides in PAIRS for side in sides for name in side)


def choose(
    path: str, kind: str, names: Iterable[str], wanted_x: Any, wanted_y: Any, usable: Mapping[str, bool]
) -> tuple[list[str], bool, str | None]:
    """Choose inputs and labels among the arrays of a file.

    Args:
        path: the file, for messages.
        kind: what the file calls an array, for messages ("dataset").
        names: of all arrays, in the file's order, with "/" between groups.
        wanted_x: a name or position, a sequence of them, or None to find the inputs.
        wanted_y: a name or position, None to find the labels, False for none.
        usable: for each name, whether it may be found without being named.

    Returns:
        The names of the inputs, whether they were asked for as a sequence, and the name of the labels or None.

    Raises:
        DataError: a name is not there, or what is wanted cannot be told; the names that are there are listed.
    """
    names = list(names)
    there = f"it has {listed(names)}" if names else f"it has no {kind} at all"
    found = [name for name in names if usable[name]]

    def named(wanted: Any) -> str:
        if isinstance(wanted, int) and not isinstance(wanted, bool):
            if not -len(names) <= wanted < len(names):
                raise DataError(f"{path} has no {kind} number {wanted}: {there}.")
            return names[wanted]
        if not isinstance(wanted, str):
            raise DataError(f"{quoted(wanted)} names no {kind} of {path}: name it by a str or by its position, an int.")
        exact = wanted.strip("/")
        if exact in names:
            return exact
        alike = [name for name in names if name.lower() == exact.lower()]
        if len(alike) != 1:
            raise DataError(f"{path} has no {kind} {quoted(wanted)}: {there}.")
        return alike[0]

    if isinstance(wanted_y, (list, tuple)):
        if len(wanted_y) != 1:
            raise DataError(f"{path}: y is one {kind} (or False for no labels), not {quoted(list(wanted_y))}.")
        wanted_y = wanted_y[0]
    labels = named(wanted_y) if wanted_y is not None and wanted_y is not False else None
    if wanted_x is not None:
        several = not isinstance(wanted_x, (str, int))
        inputs = [named(one) for one in (wanted_x if isinstance(wanted_x, Sequence) and several else [wanted_x])]
        if not inputs:
            raise DataError(f"{path}: x is an empty list, so there are no inputs: {there}.")
        if wanted_y is None:
            labels = _labels_of(path, kind, inputs, found)
        return inputs, several, labels

    pairs = [(x, y) for x, y in _pairs(found) if labels is None or y == labels]
    if wanted_y is False:
        pairs = [(x, "") for x in dict.fromkeys(x for x, _ in pairs)]
    if len(pairs) == 1:
        return [pairs[0][0]], False, labels or pairs[0][1] or None
    rest = [name for name in found if name != labels]
    if not pairs and (labels is not None or wanted_y is False):
        usual = [name for name in rest if any(_split(name)[1] in side for side, _ in PAIRS)]
        rest = usual if len(usual) == 1 else rest
    if not pairs and len(rest) == 1:
        return rest, False, labels
    if not rest:
        raise DataError(f"{path} has no {kind} for the inputs: {there}.")
    several_pairs = f" ({listed(' and '.join(filter(None, pair)) for pair in pairs)} would do)" if pairs else ""
    raise DataError(f"{path}: which {kind}s are inputs and labels? Name them with x= and y={several_pairs}: {there}.")


def _pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Inputs and labels that lie in one group and are called a usual pair; those at the top alone, if there are any."""
    split = [(name, *_split(name)) for name in names]
    pairs = []
    for x_names, y_names in PAIRS:
        inputs = [(name, group) for name, group, last in split if last in x_names]
        labels = [(name, group) for name, group, last in split if last in y_names]
        pairs += [(x, y) for (x, a), (y, b) in itertools.product(inputs, labels) if a == b and (x, y) not in pairs]
    return [pair for pair in pairs if "/" not in pair[0]] or pairs


def _labels_of(path: str, kind: str, inputs: Sequence[str], found: Sequence[str]) -> str | None:
    """Labels that go with inputs that were named: of a usual pair, or else called as labels are, in the same group."""
    others = [name for name in found if name not in inputs]
    partners = [y for x, y in _pairs([inputs[0], *others]) if x == inputs[0]]
    if not partners:
        group = _split(inputs[0])[0]
        usual = {name for _, side in PAIRS for name in side}
        partners = [name for name in others if _split(name)[0] == group and _split(name)[1] in usual]
    if len(partners) > 1:
        raise DataError(f"{path}: which {kind} is the labels? Name it with y=: {listed(partners)} would do.")
    return partners[0] if partners else None


def _split(name: str) -> tuple[str, str]:
    group, _, last = name.rpartition("/")
    return group, last.lower()
