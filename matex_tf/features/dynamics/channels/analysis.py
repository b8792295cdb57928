"""The channels of a model: which there are, which are tied, and which entries of which variables are theirs.

The idea is that of DepGraph (arXiv 2301.12900): what has to go together is worked out from the model's graph, not from
names. Here each neuron gets a number where a layer makes it, the numbers flow through the graph along with the tensors,
and each layer notes which places along which axes of its variables belong to which number. Numbers that meet, as in a
residual sum, are tied. So a channel is a set of numbers, and all that has to change with it is where they stand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf.features.dynamics.channels.flow import Flow

#: What the places along an axis of a variable are to the channels there.
MAKES, READS, OWN = "makes", "reads", "own"


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """The channels along one axis of one variable.

    Attributes:
        layer: whose variable it is.
        variable: of Keras.
        axis: of the variable.
        channels: (variable.shape[axis],) int64, the channel of each place.
        role: `MAKES`, as the columns of a kernel do and its bias; `READS`, as the rows of the next kernel do; `OWN` for
            what works on each channel alone, such as the scale of a BatchNormalization.
    """

    layer: Any
    variable: Any
    axis: int
    channels: np.ndarray
    role: str

    def places(self, channels: np.ndarray) -> np.ndarray:
        """Which entries of the variable belong to some channels: bool, to be broadcast to its shape."""
        axes = range(len(self.variable.shape))
        return np.isin(self.channels, channels).reshape([-1 if axis == self.axis else 1 for axis in axes])


@dataclasses.dataclass(frozen=True, eq=False)
class Size:
    """A number that a layer keeps beside its variables, such as `units`.

    Attributes:
        channels: the channels that it counts.
        put: sets it.
    """

    channels: np.ndarray
    put: Callable[[int], None]


class Analysis:
    """What is found out about one model.

    Attributes:
        parts: the channels along axes of variables.
        sizes: numbers of channels that layers keep.
        tensors: symbolic tensors of functional models, and what is known of them.
        calls: layers, and what is known of the tensors that come into them.
        makers: layers that make channels, what kind of channels, and the first of them.
        left_whole: by the name of a layer, why its channels are left alone.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.sizes: list[Size] = []
        self.tensors: list[tuple[Any, Flow]] = []
        self.calls: list[tuple[Any, Any]] = []
        self.makers: list[tuple[Any, str, int]] = []
        self.left_whole: dict[str, str] = {}
        self._tied_to = np.zeros(0, np.int64)
        self._fixed: list[np.ndarray] = []
        self._across: list[np.ndarray] = []
        self._made: dict[tuple[int, str], np.ndarray] = {}
        self._noted: dict[tuple[int, int], np.ndarray] = {}

    def made_by(self, layer: Any, count: int, what: str = "") -> np.ndarray:
        """The channels that a layer makes, the same however often it is called.

        Args:
            what: tells apart several kinds of channels that it makes.
        """
        key = (id(layer), what)
        if key not in self._made:
            first = len(self._tied_to)
            self._made[key] = np.arange(first, first + count)
            self.makers.append((layer, what, first))
            self._tied_to = np.concatenate([self._tied_to, self._made[key]])
        return self._made[key]

    def part(self, layer: Any, variable: Any, axis: int, channels: np.ndarray | None, role: str) -> None:
        """Note whose places the places along an axis of a variable are. Of one that is noted twice, as that of a layer
        that is called twice, both channels of a place are tied.

        Args:
            layer: whose variable it is.
            variable: of Keras; None for one that the layer does not have, of which nothing is noted.
            axis: of the variable; may be negative.
            channels: (variable.shape[axis],) int64; None where they are not known, and nothing is noted.
            role: `MAKES`, `READS` or `OWN`, see `Part`.
        """
        if variable is None or channels is None:
            return
        axis %= len(variable.shape)
        assert len(channels) == variable.shape[axis], (variable.path, axis, len(channels), variable.shape)
        if (before := self._noted.get((id(variable), axis))) is not None:
            self.tie(before, channels)  # a layer that is called twice
            return
        self._noted[id(variable), axis] = channels
        self.parts.append(Part(layer, variable, axis, channels, role))

    def size(self, channels: np.ndarray | None, put: Callable[[int], None]) -> None:
        """Note a number of channels that a layer keeps.

        Args:
            channels: that it counts, (count,) int64; None where they are not known, and nothing is noted.
            put: sets the number.
        """
        if channels is not None:
            self.sizes.append(Size(channels, put))

    def tie(self, some: np.ndarray | None, others: np.ndarray | None) -> None:
        """Channels that meet pairwise, as in a sum, go together: `some` of one side and the `others`, int64 of one
        length. Where one side is None, since it is not known, or has another length, all of both stay.
        """
        if some is None or others is None or len(some) != len(others):
            for side in (some, others):
                if side is not None:
                    self.fix(side)
            return
        for one, other in zip(some.tolist(), others.tolist(), strict=True):
            one, other = self._root(one), self._root(other)
            if one != other:
                self._tied_to[max(one, other)] = min(one, other)

    def tie_groups(self, channels: np.ndarray | None, groups: int) -> np.ndarray | None:
        """Channels that lie in groups of one size: those at the same place of each go together, so it stays one size.

        Args:
            channels: (count,) int64, group after group; None where they are not known.
            groups: how many there are; divides the count.

        Returns:
            The channels of the first group; None where they are not known.
        """
        if channels is None:
            return None
        first, *others = np.split(channels, groups)
        for other in others:
            self.tie(first, other)
        return first

    def fix(self, channels: np.ndarray | None) -> None:
        """Channels that must stay: what reads them, or says how many there are, is not ours to change."""
        if channels is not None:
            self._fixed.append(channels)

    def across(self, channels: np.ndarray | None) -> None:
        """Channels over which something is computed all together, as by LayerNormalization: one more changes all."""
        if channels is not None:
            self._across.append(channels)

    def leave_whole(self, layer: Any, flows: Sequence[Flow], shapes: Sequence[Any], why: str) -> list[Flow]:
        """A layer that is not known: what flows in stays as it is, and nothing is known of what comes out.

        One without weights that reads nothing of which channels are known, such as an image, takes nothing away.

        Args:
            layer: or another operation of Keras.
            flows: what comes in.
            shapes: of what comes out, with the batch.
            why: a clause for the user, of the layer.

        Returns:
            What comes out.
        """
        if getattr(layer, "weights", None) or any(flow.channels is not None for flow in flows):
            self.left_whole.setdefault(layer.name, why)
        for flow in flows:
            self.fix(flow.channels)
        return [Flow.unknown(shape) for shape in shapes]

    def _root(self, channel: int) -> int:
        while self._tied_to[channel] != channel:
            self._tied_to[channel] = self._tied_to[self._tied_to[channel]]
            channel = int(self._tied_to[channel])
        return channel

    def roots(self, channels: np.ndarray) -> np.ndarray:
        """These channels, each as the smallest number that is tied to it."""
        while True:
            further = self._tied_to[channels]
            if (further == channels).all():
                return further
            channels = further

    def settle(self) -> None:
        """Once all is noted: number each set of tied channels alike, everywhere."""
        self.parts = [dataclasses.replace(part, channels=self.roots(part.channels)) for part in self.parts]
        self.sizes = [dataclasses.replace(size, channels=self.roots(size.channels)) for size in self.sizes]
        self.tensors = [
            (tensor, flow if flow.channels is None else dataclasses.replace(flow, channels=self.roots(flow.channels)))
            for tensor, flow in self.tensors
        ]

    @property
    def fixed(self) -> set[int]:
        """The channels that must stay."""
        return {int(channel) for channels in self._fixed for channel in self.roots(channels)}

    @property
    def normalized_together(self) -> set[int]:
        """The channels over which something is computed all together."""
        return {int(channel) for channels in self._across for channel in self.roots(channels)}
