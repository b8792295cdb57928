"""A step for batches of any length, made when batches of a few lengths have come.

For one length a step is rebuilt with the numbers that follow from it. To rebuild it for each of a hundred lengths takes
longer than to train. So it is made for a few lengths that no batch need have, without its exchanges, and what these
graphs have in common is one for all lengths between the shortest and the longest of them.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import tensorflow as tf

from matex_tf.patches.partition.build import Exchange
from matex_tf.patches.partition.labels import CannotPartition
from matex_tf.patches.partition.lengths.merged import Merged, NotLinear
from matex_tf.patches.partition.shapes import inference
from matex_tf.patches.partition.shapes.affine import MOST
from matex_tf.patches.partition.step import Partitioned

T = TypeVar("T")

#: Shapes of batches after which a step for all is made; after twice as many it is tried again, so many times.
_AFTER, _TRIES = 2, 4
#: Lengths that may differ from each other; and up to which a step is made at first.
_LENGTHS, _LONG = 2, 1000
#: Shapes of batches for which a step is rebuilt, each time anew; other batches are computed whole.
MOST_SHAPES = 32
#: A step is made for lengths that differ by multiples of these: of 2 where it halves a length once and rounds it.
_STRIDES = 1, 2, 8, 32

Sizes = tuple[tuple[int | None, ...], ...]
#: Makes a step as `Partitioned` does, of an exchange, the shapes of batches, what makes an op after the last exchange,
#: and `any_length`.
Make = Callable[..., Partitioned]


class Span:
    """Batches whose tensors have some sizes that differ.

    Attributes:
        shapes: of the tensors, with None for those sizes, and for rows.
        places: for each length, where it is: numbers of a tensor and of an axis.
        stride: of the lengths for which a step is made.
        shortest, longest: of each length, those for which a step is made; known once it is.
    """

    def __init__(self, every: Sequence[Sizes], is_wide: bool, stride: int = 1):
        """Args: every: shapes of batches, with None for rows. is_wide: whether much shorter and longer ones belong to
        them. stride: what lengths differ from those of the last shapes by a multiple of.

        Raises:
            CannotPartition: they differ in more than a few lengths.
        """
        self._first, self._wide, self.stride = every[-1], is_wide, stride
        of: dict[tuple[int | None, ...], list[tuple[int, int]]] = {}
        for number, sizes in enumerate(every[0]):
            for axis in range(len(sizes)):
                values = tuple(one[number][axis] for one in every)
                if len(set(values)) > 1:
                    of.setdefault(values, []).append((number, axis))
        if not 0 < len(of) <= _LENGTHS:
            raise CannotPartition("batches differ in many lengths")
        self.places, self._values = list(of.values()), [[int(v) for v in values if v is not None] for values in of]
        at = {place for places in self.places for place in places}
        self.shapes = [
            tf.TensorShape([None if (number, axis) in at else size for axis, size in enumerate(sizes)])
            for number, sizes in enumerate(every[0])
        ]
        self.shortest = self.longest = [0] * len(self.places)

    def fits(self, every: Sizes) -> bool:
        """Whether a step for any length is one for batches of these shapes."""
        if list(map(len, every)) != list(map(len, self._first)):
            return False
        lengths = self.lengths_of(every)
        return self.of(lengths) == every and all(
            low <= (length or 0) <= high and ((length or 0) - low) % self.stride == 0
            for low, length, high in zip(self.shortest, lengths, self.longest, strict=True)
        )

    def lengths_of(self, every: Sizes) -> list[int | None]:
        """The lengths that batches of these shapes have."""
        return [every[places[0][0]][places[0][1]] for places in self.places]

    def of(self, lengths: Sequence[int | None]) -> Sizes:
        """The shapes of batches that have these lengths."""
        at = {place: length for places, length in zip(self.places, lengths, strict=True) for place in places}
        return tuple(
            tuple(at.get((number, axis), size) for axis, size in enumerate(sizes))
            for number, sizes in enumerate(self._first)
        )

    def strides(self, length: Any, number: int) -> Any:
        """How many strides a length is longer than the shortest. Args: number: which of the lengths it is."""
        return (length - self.shortest[number]) // self.stride

    def points(self, taken: set[int]) -> list[tuple[int, ...]]:
        """The lengths for which a step is made: as many as show that what it makes of them is right for others.

        Args:
            taken: numbers that stand in the step for something else.

        Raises:
            CannotPartition: there are too few lengths between the shortest and the longest.
        """
        chosen = []
        for values in self._values:
            if self._wide:
                ends = MOST + 1, max(_LONG, 2 * max(values)), 1
            else:  # a table of positions may have no more rows
                ends = max(min(values), MOST + 1), max(values), -1
            found = _chosen(*ends, taken, values[-1], self.stride)
            taken = taken.union(found)
            chosen.append(found)
        self.shortest, self.longest = [found[0] for found in chosen], [found[-1] for found in chosen]
        shortest = tuple(self.shortest)
        others = [(*shortest[:k], found[1], *shortest[k + 1 :]) for k, found in enumerate(chosen)]
        return [shortest, *others, tuple(self.longest)]


def _chosen(low: int, high: int, step: int, taken: set[int], length: int, stride: int) -> list[int]:
    """Two lengths that follow each other, and a longer one.

    Args:
        low, high: where to look. step: the way from a high one that is taken to the next. taken: numbers that none may
            be. length, stride: each of them differs from this length by a multiple of the stride.
    """
    low += (length - low) % stride
    high += step * (step * (length - high) % stride)
    while low in taken or low + stride in taken:
        low += stride
    while high in taken:
        high += step * stride
    if high <= low + stride:
        raise CannotPartition("batches have few lengths")
    return [low, low + stride, high]


class Lengths(Generic[T]):
    """The shapes of batches that have come, and the steps that are made for any length."""

    def __init__(self) -> None:
        self._seen: list[Sizes] = []
        self._made: list[tuple[Span, T]] = []
        self._stage = 0  # of `_STRIDES`
        self._tries: collections.Counter[Any] = collections.Counter()  # by what is left of lengths by the stride

    def step(self, sizes: Sizes, make: Callable[[Span], T]) -> T | None:
        """A step for batches of these shapes and others; None if there is none.

        Args:
            sizes: shapes for which no step was made for themselves.
            make: makes a step for any length, if it is time for one. Whatever it raises, each shape may be rebuilt by
                itself.
        """
        for span, made in self._made:
            if span.fits(sizes):
                return made
        self._seen = [one for one in self._seen if one != sizes] + [sizes]
        alike = [one for one in self._seen if list(map(len, one)) == list(map(len, sizes))]
        if self._stage == len(_STRIDES):
            return None
        stride = _STRIDES[self._stage]
        left = stride, *(tuple(size and size % stride for size in one) for one in sizes)
        tries = self._tries[left]
        if tries == _TRIES or len(alike) < _AFTER << tries + self._stage:
            return None
        self._tries[left] += 1
        try:
            span = Span(alike, not tries, stride)
            made = make(span)
        except NotLinear:
            self._stage += 1
            return None
        except Exception:
            return None
        self._made.append((span, made))
        return made if span.fits(sizes) else None


class _Marks:
    """An exchange of a graph that is never run: each one is an op that says which it is.

    Attributes:
        made: by the name of the op, what it is to become: a function of tensors.
    """

    def __init__(self, exchange: Exchange, after_last: Callable[[], Any] | None):
        """Args: exchange: that of the graph that is made of this one; after_last: what makes an op after its last."""
        self._exchange, self._after_last = exchange, after_last
        self.made: dict[str, Callable[[Sequence[Any]], list[Any]]] = {}

    def sum(self, tensors: Sequence[tf.Tensor], names: Sequence[str], coded: bool = False) -> list[tf.Tensor]:
        """See `build.Exchange.sum`."""
        return self._marked(tensors, functools.partial(self._exchange.sum, names=names, coded=coded))

    def gather(self, tensors: Sequence[tf.Tensor], names: Sequence[str]) -> list[tf.Tensor]:
        """See `build.Exchange.gather`."""
        longer = [tf.raw_ops.PlaceholderWithDefault(input=t, shape=[None, *t.shape[1:]]) for t in tensors]
        return self._marked(longer, functools.partial(self._exchange.gather, names=names))

    def scatter(self, *given: Any, **named: Any) -> Any:
        """There are no variables in parts here. Raises: CannotPartition: always."""
        raise CannotPartition("variables lie in parts")

    join = send = part = span = ends = scatter

    def after_last(self) -> Any:
        """The mark of what comes after the last exchange."""
        mark = tf.no_op()
        self.made[mark.name] = lambda _: [] if self._after_last is None else [self._after_last()]
        return mark

    def _marked(self, tensors: Sequence[tf.Tensor], becomes: Callable[..., list[tf.Tensor]]) -> list[tf.Tensor]:
        outputs = tf.identity_n(list(tensors))
        self.made[outputs[0].op.name] = becomes
        return list(outputs)


class OfAnyLength(Partitioned):
    """A step for batches of a span."""

    def __init__(
        self, span: Span, traced: Any, make: Make, exchange: Exchange, after_last: Callable[[], Any] | None = None
    ):
        """Args:
        span: its batches. traced: a concrete function of such batches. make: see `Make`.
        exchange, after_last: see `Partitioned`.

        Raises:
            CannotPartition: what it does depends otherwise on the lengths than in the sizes of tensors.
        """
        self._span, self._marks = span, _Marks(exchange, after_last)
        points = span.points(set(inference.numbers(traced.graph)))
        self._points = [[span.strides(length, number) for number, length in enumerate(point)] for point in points]
        shapes = [[tf.TensorShape(sizes) for sizes in span.of(point)] for point in points]
        self._samples = [make(self._marks, one, self._marks.after_last, any_length=True) for one in shapes]
        vars(self).update({**vars(self._samples[0]), **vars(self)})
        self._made = {}

    def _make(self, empty: bool) -> Any:
        graphs = []
        self._marks.made.clear()
        for sample in self._samples:
            graphs.append(sample.graph(empty).graph)
            sample.forget()
        merged = Merged(graphs, self._points)
        numbers = merged.first.inputs[: len(self._span.shapes) + 1]

        def step(*arguments: Any) -> list[Any]:
            lengths = [tf.shape(arguments[places[0][0]])[places[0][1]] for places in self._span.places]
            strides = [self._span.strides(length, number) for number, length in enumerate(lengths)]
            return merged.run(arguments, strides, self._marks.made)

        specs = [tf.TensorSpec(shape, one.dtype) for shape, one in zip(self._span.shapes, numbers, strict=False)]
        function = tf.function(step, input_signature=[*specs, tf.TensorSpec([4], tf.int32)], autograph=False)
        return function.get_concrete_function()
