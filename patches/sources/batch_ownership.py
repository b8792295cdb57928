"""Whether batches that differ between ranks are rows of their own, or the same rows with other random numbers.

What differs decides, by evidence. Labels, words and whole numbers are seldom made up at random: where those differ the
rows are others. Images, and other floating-point inputs, are: parallel random ops draw differently on each rank.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.common import log_once, row_slicing
from matex_tf.patches.sources import array_fingerprint
from matex_tf.patches.sources.pipeline_ownership import Made, Source

#: Words by which the parts of a dict are known to be labels.
_LABELS = ("label", "labels", "target", "targets", "y", "class", "classes")
#: Whole numbers with more axes than these (images, masks) are changed at random like floating-point ones.
_AXES = 2

UNKNOWN = Made(Source.OPEN, python=True)


class _Leaf(NamedTuple):
    name: str
    print: array_fingerprint.Print
    label: bool
    discrete: bool  # whole numbers, words, truth values; also whole numbers in floating point
    varied: bool  # whether its rows differ from one another


@dataclasses.dataclass(frozen=True)
class Finding:
    """What was found of a first batch.

    Attributes:
        own: whether each rank has rows of its own.
        counts: how many rows each rank has; -1 where it has no batch.
        differs: names of the parts that differ, for a line; empty where the ranks have the same.
        why: what the decision rests on, for a line.
        same: whether every rank has the same, to the bit.
        of_first_rank: whether all ranks take the batches of rank 0.
    """

    own: bool
    counts: tuple[int, ...]
    differs: str = ""
    why: str = ""
    same: bool = False
    of_first_rank: bool = False


def look(data: Any, made: Made, what: str, known_as_own: bool = False, rows: int | None = None) -> Finding:
    """Compare a batch. All ranks come here.

    Args:
        data: an eager batch; None where this rank has none.
        made: what is known of where it came from; `UNKNOWN` for what Python code gives.
        what: the purpose of the meeting.
        known_as_own: whether earlier batches were the rank's own, so that any difference will do.
        rows: how many there are, where that cannot be seen from `data`.
    """
    ranks, setting = world.current(), settings.current().rows
    if rows is None:
        rows = -1 if data is None else row_slicing.rows_of(data)
    held = ranks.compare((rows, 0 if data is None else row_slicing.checksum(data)), what)
    counts = tuple(rows for rows, _ in held)
    if made.source is Source.OWN and setting != "shared":
        return Finding(True, counts, why="their pipelines are made of other rows")
    if len(set(held)) == 1:
        return Finding(setting == "own", counts, same=True)
    if known_as_own and setting != "shared":
        return Finding(True, counts)
    return _judge(ranks.allgather([] if data is None else _describe(data), what), counts, made, setting)


def _judge(everyone: list[list[_Leaf]], counts: tuple[int, ...], made: Made, setting: str) -> Finding:
    first = everyone[0]
    if len(set(counts)) > 1:
        return Finding(setting != "shared", counts, "their number of rows", "they have other numbers of rows")
    if any(len(leaves) != len(first) for leaves in everyone):  # an error that the step finds words for
        return Finding(setting == "own", counts)
    apart = [
        place
        for place in range(len(first))
        if not all(array_fingerprint.alike(first[place].print, leaves[place].print) for leaves in everyone[1:])
    ]
    differs = ", ".join(first[place].name for place in apart)
    if setting != "auto" or not apart:
        return Finding(setting == "own", counts, differs, f"--rows {setting}")
    if made.source is Source.SAME:
        return Finding(False, counts, differs, "what their pipeline is made of is the same on every rank")
    if world.current().holds_shard:
        return Finding(True, counts, differs, "a DataSet gives each rank rows of its own")
    if made.touched and len(made.touched) == len(first):
        untouched = [place for place in apart if not made.touched[place]]
        if untouched:
            names = ", ".join(first[place].name for place in untouched)
            return Finding(True, counts, differs, f"no random op has touched {names}")
        return Finding(False, counts, differs, "only what random ops have touched differs")
    return _by_labels(everyone, apart, counts, differs)


def _by_labels(everyone: list[list[_Leaf]], apart: list[int], counts: tuple[int, ...], differs: str) -> Finding:
    """Of data that code of Python makes: labels decide, or other whole numbers and words where labels say nothing."""
    first = everyone[0]
    telling = [place for place, leaf in enumerate(first) if leaf.discrete]
    labels = [place for place in telling if first[place].label]
    varied = [place for place in labels if any(leaves[place].varied for leaves in everyone)]
    for place in varied or telling:
        if place in apart:
            return Finding(True, counts, differs, f"{first[place].name} differs, which random numbers seldom touch")
    return Finding(False, counts, differs, "labels do not differ" if varied else "only floating-point inputs differ")


def _describe(data: Any) -> list[_Leaf]:
    labels = {id(leaf) for leaf in tf.nest.flatten(_labels(data))}
    named = list(_named(data))
    return [_leaf(name, leaf, id(leaf) in labels) for name, leaf in named if leaf is not None]


def _labels(data: Any) -> Any:
    if isinstance(data, (tuple, list)) and len(data) in (2, 3):
        return data[1]
    if isinstance(data, dict):
        return [value for name, value in data.items() if _word(name) in _LABELS]
    return []


def _word(name: Any) -> str:
    """`labels` of `net/labels:0`, which is what a session calls it."""
    return str(name).lower().rpartition("/")[2].partition(":")[0]


def _named(data: Any, path: str = "") -> Any:
    """Each part of a batch, with its place in words: `x`, `y`, `x['left']`."""
    if isinstance(data, dict):
        for key in sorted(data):
            yield from _named(data[key], f"{path}[{key!r}]" if path else repr(key))
    elif isinstance(data, (tuple, list)):
        names = ("x", "y", "sample_weight") if not path and len(data) <= 3 else ()
        for place, one in enumerate(data):
            yield from _named(one, names[place] if names else f"{path}[{place}]")
    else:
        yield path or "x", data


def _leaf(name: str, leaf: Any, label: bool) -> _Leaf:
    if not isinstance(leaf, (tf.Tensor, np.ndarray)):  # sparse and ragged: their values
        leaf = tf.nest.flatten(leaf, expand_composites=True)[0]
    array = np.asarray(leaf)
    name = f"{name} ({array.dtype if not array.dtype.hasobject else 'string'}, rows of shape {tuple(array.shape[1:])})"
    discrete = array.ndim <= _AXES and (array.dtype.kind in "iubOSU" or _whole(array))
    varied = discrete and array.ndim > 0 and array.size > 0 and bool((array != array[:1]).any())
    return _Leaf(name, array_fingerprint.of(array), label, discrete, varied)


def _whole(array: np.ndarray) -> bool:
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        return False
    with np.errstate(all="ignore"):
        return bool(np.isfinite(array).all() and (array == np.round(array)).all())


def tell(finding: Finding, what: str) -> None:
    """Say what follows from a first batch that differs.

    Args:
        finding: of that.
        what: whose batches these are, such as "the data of fit".
    """
    if finding.own:
        counts = ", ".join(str(max(rows, 0)) for rows in finding.counts[:16])
        if world.current().holds_shard:  # as the script means it
            log_once.log(f"{what}: each rank has rows of its own ({counts} in the first batch)")
            return
        because = f" since {finding.why}" if finding.why else ""
        log_once.log(
            f"{what}: each rank has rows of its own ({counts} in the first batch){because}: together they are "
            f"the batch. If all ranks should have the same data, take --rows shared (docs/data.md), and "
            f"{log_once.LIKELY}."
        )
    elif finding.differs:
        how = "each batch of rank 0" if finding.of_first_rank else "each batch"
        log_once.log(
            f"{what}: {finding.differs} differs between ranks, and {how} is split by rows, since "
            f"{finding.why}. Seed random ops, and fix the order (deterministic=True). If each rank has rows of its "
            "own, take --rows own (docs/data.md)."
        )
