"""A step for batches of any length, made when batches of a few lengths have come.

For one length a step is rebuilt with the numbers that follow from it. To rebuild it for each of a hundred lengths takes
longer than to train. So it is made for a few lengths that no batch need have, without its exchanges, and what these
graphs have in common is one for all lengths between the shortest and the longest of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from matex_tf.patches.partition.build import Exchange
from matex_tf.patches.partition.labels import CannotPartition
from matex_tf.patches.partition.lengths.merged import Merged
from matex_tf.patches.partition.shapes import inference
from matex_tf.patches.partition.shapes.affine import MOST
from matex_tf.patches.partition.step import Partitioned

#: Shapes of batches after which a step for all is made; after twice as many it is tried again, so many times.
_AFTER, _TRIES = 2, 4
#: Lengths that may differ from each other; and up to which a step is made at first.
_LENGTHS, _LONG = 2, 1000

Sizes = tuple[tuple[int | None, ...], ...]
#: Makes a step as `Partitioned` does, of an exchange, the shapes of batches, what makes an op after the last exchange,
#: and `any_length`.
Make = Callable[..., Partitioned]


class Span:
    """Batches whose tensors have some sizes that differ.

    Attributes:
        shapes: of the tensors, with None for those sizes, and for rows.
        places: for each length, where it is: numbers of a tensor and of an axis.
        shortest, longest: of each length, those for which a step is made; known once it is.
    """

    def __init__(self, every: Sequence[Sizes], is_wide: bool):
        """Args: every: shapes of batches, with None for rows. is_wide: whether much shorter and longer ones belong to
        them.

        Raises:
            CannotPartition: they differ in more than a few lengths.
        """
        self._first, self._wide = every[0], is_wide
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
            low <= (length or 0) <= high for low, length, high in zip(self.shortest, lengths, self.longest, strict=True)
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
                found = _chosen(MOST + 1, max(_LONG, 2 * max(values)), taken, 1)
            else:  # a table of positions may have no more rows
                found = _chosen(max(min(values), MOST + 1), max(values), taken, -1)
            taken = taken.union(found)
            chosen.append(found)
        self.shortest, self.longest = [found[0] for found in chosen], [found[-1] for found in chosen]
        shortest = tuple(self.shortest)
        others = [(*shortest[:k], found[1], *shortest[k + 1 :]) for k, found in enumerate(chosen)]
        return [shortest, *others, tuple(self.longest)]


def _chosen(low: int, high: int, taken: set[int], step: int) -> list[int]:
    """Two lengths that follow each other, and a longer one.

    Args:
        low, high: where to look. taken: numbers that none may be. step: from a high one that is taken to the next.
    """
    while low in taken or low + 1 in taken:
        low += 1
    while high in taken:
        high += step
    if high <= low + 1:
        raise CannotPartition("batches have few lengths")
    return [low, low + 1, high]


class Lengths:
    """The shapes of batches that have come, and whether it is time for a step for any length."""

    def __init__(self) -> None:
        self._seen: list[Sizes] = []
        self._tries = 0

    def give_up(self) -> None:
        """Let there be no step for any length, but those that are made."""
        self._tries = _TRIES

    def add(self, sizes: Sizes) -> Span | None:
        """Note shapes for which there is no step; returns the batches for which one is to be made now, if one is."""
        alike = [one for one in self._seen if list(map(len, one)) == list(map(len, sizes))]
        if sizes not in self._seen:
            self._seen.append(sizes)
            alike.append(sizes)
        if self._tries == _TRIES or len(alike) < _AFTER << self._tries:
            return None
        self._tries += 1
        try:
            return Span(alike, self._tries == 1)
        except CannotPartition:
            return None


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

    join = part = span = scatter

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
        self._points = span.points(set(inference.numbers(traced.graph)))
        shapes = [[tf.TensorShape(sizes) for sizes in span.of(point)] for point in self._points]
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
            return merged.run(arguments, lengths, self._marks.made)

        specs = [tf.TensorSpec(shape, one.dtype) for shape, one in zip(self._span.shapes, numbers, strict=False)]
        function = tf.function(step, input_signature=[*specs, tf.TensorSpec([4], tf.int32)], autograph=False)
        return function.get_concrete_function()
