"""What is cut out of a tensor: how long the result is for any number of rows.

TensorFlow infers sizes for the prime number of rows alone. `x[:3]` has three rows then, and one of a batch of one row;
`x[:, : tf.shape(x)[0]]` has all columns. Such a size is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from matex_tf.patches.partition.shapes.affine import Affine
from matex_tf.patches.partition.shapes.shaped import Shaped

#: Numbers of rows for which sizes are compared with those for the prime.
_SAMPLES = (1, 2, 3, 10_000_019)
#: Ops of matrices that give as many elements as the shorter axis has.
_SHORTER = ("MatrixDiagPartV3", "MatrixDiagPartV2", "Svd", "Qr")
#: Ops whose results may have sizes that are open.
CUTS = ("StridedSlice", "Slice", *_SHORTER)
MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


class Spec:
    """The masks of a strided slice: which of its items is about which axis of the input, and where that goes.

    Attributes:
        item: the item about an axis of the input, by axis; those under an ellipsis have none.
        to: the axis of the output, by axis of the input; those that one element is taken of have none.
    """

    def __init__(self, attribute: Callable[[str], Any], rank: int, items: int):
        """Args: attribute: gives a mask by its name, as `op.get_attr` does. rank: of the input. items: how many there
        are, as many as the slice has begins."""
        self.masks = {name: attribute(name) for name in MASKS}
        bit = lambda name, item: bool(self.masks[name] >> item & 1)  # noqa: E731
        self.item: dict[int, int] = {}
        self.to: dict[int, int] = {}
        new = sum(bit("new_axis_mask", item) for item in range(items))
        has_ellipsis = any(bit("ellipsis_mask", item) for item in range(items))
        axis = out = 0
        for item in range(items):
            if bit("ellipsis_mask", item):
                for _ in range(rank - (items - new - 1)):
                    self.to[axis] = out
                    axis, out = axis + 1, out + 1
            elif bit("new_axis_mask", item):
                out += 1
            else:
                self.item[axis] = item
                if not bit("shrink_axis_mask", item):
                    self.to[axis] = out
                    out += 1
                axis += 1
        if not has_ellipsis:
            for rest in range(axis, rank):
                self.to[rest] = out
                out += 1

    def bounds(self, item: int, begin: Affine, end: Affine, size: int, prime: int) -> tuple[int, int]:
        """The first element of an item, and the one after its last, for the prime number of rows.

        Args:
            item: its place. begin, end: of all items, `[items]`. size: of its axis, for the prime number of rows.
            prime: that number.
        """
        found = []
        for mask, value, default in (("begin_mask", begin, 0), ("end_mask", end, size)):
            if self.masks[mask] >> item & 1:
                found.append(default)
                continue
            at = int(value.at(prime)[item])
            found.append(min(max(at + size if at < 0 else at, 0), size))
        return found[0], found[1]


def shape(made: Any, tensor: Any, new: Shaped) -> tf.TensorShape | None:
    """The shape of what an op gives, in which sizes are open that are not those for the prime with every number of
    rows; None if there are none.

    Args:
        made: one of `CUTS`. tensor: an output of it. new: the graph of both.
    """
    if tensor.shape.rank is None:
        return None
    if made.type in _SHORTER:
        last = (new.shape(made.inputs[0]) or [])[-2:]
        if len({new.counts(size) for size in last}) < 2:
            return None
        return tf.TensorShape([size if new.counts(size) else None for size in tensor.shape])
    sizes, wrong = tensor.shape.as_list(), set()
    for rows in (new.fixed,) if new.fixed else _SAMPLES:
        found = _sizes(made, rows, new)
        wrong |= {axis for axis, size in found if size != _at(sizes[axis], rows, new)}
    return tf.TensorShape([None if axis in wrong else size for axis, size in enumerate(sizes)]) if wrong else None


def _at(size: int | None, rows: int, new: Shaped) -> int | None:
    """A size for a number of rows, from that for the prime."""
    return size // new.prime * rows if size is not None and new.counts(size) else size


def _sizes(made: Any, rows: int, new: Shaped) -> Iterator[tuple[int, int]]:
    """For each axis of a slice that is cut: its place in the result, and its size for a number of rows."""
    given, known = new.shape(made.inputs[0]), [new.known.get(tensor) for tensor in made.inputs[1:]]
    if given is None:
        return
    sizes, bounds = [_at(size, rows, new) for size in given], [value.at(rows) for value in known if value is not None]
    if len(bounds) < len(known):
        return
    if made.type == "Slice":
        begin, count = bounds
        for axis, size in enumerate(sizes):
            if size is not None:
                yield axis, int(count[axis] if count[axis] >= 0 else size - begin[axis])
        return
    begin, end, step = bounds
    spec = Spec(made.get_attr, len(sizes), len(step))
    for axis, item in spec.item.items():
        size = sizes[axis]
        if axis in spec.to and size is not None:
            first = None if spec.masks["begin_mask"] >> item & 1 else int(begin[item])
            last = None if spec.masks["end_mask"] >> item & 1 else int(end[item])
            yield spec.to[axis], len(range(size)[first : last : int(step[item])])
