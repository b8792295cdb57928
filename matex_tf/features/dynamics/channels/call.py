"""One call of a layer in a graph: what comes in and goes out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from matex_tf.features.dynamics.channels.flow import Flow, Shape


@dataclasses.dataclass
class Call:
    """A call of an operation.

    Attributes:
        symbolic_args, symbolic_kwargs: its arguments, with symbolic tensors.
        flows: what is known of the tensors among them, flat.
        shapes: of what comes out, flat.
        tensors: the symbolic tensors among the arguments, flat.
        known: what is known of symbolic tensors, by their ids.
    """

    symbolic_args: tuple[Any, ...]
    symbolic_kwargs: dict[str, Any]
    flows: Sequence[Flow]
    shapes: Sequence[Shape]
    tensors: Sequence[Any] = ()
    known: Mapping[int, Flow] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, node: Any, known: Mapping[int, Flow]) -> Call:
        """The call that a node of a graph stands for.

        Args:
            node: of Keras: an operation with its arguments and outputs.
            known: what is known of symbolic tensors, by their ids; of all that come into the node.
        """
        arguments = node.arguments
        flows = [known[id(tensor)] for tensor in arguments.keras_tensors]
        shapes = [tuple(tensor.shape) for tensor in node.outputs]
        return cls(arguments.args, arguments.kwargs, flows, shapes, arguments.keras_tensors, known)

    def argument(self, place: int, name: str) -> Any:
        """An argument with flows in the place of symbolic tensors; None where it is not given.

        Args:
            place: where it stands if it is given by place.
            name: what it is called if it is given by name.
        """
        from keras import tree

        by_place = len(self.symbolic_args) > place
        given = self.symbolic_args[place] if by_place else self.symbolic_kwargs.get(name)
        return tree.map_structure(lambda leaf: self.known.get(id(leaf), leaf), given)

    def inside(self, flows: Sequence[Flow], shapes: Sequence[Shape]) -> Call:
        """A call of a layer within this one, on other tensors: `flows` come in, and `shapes` are of what comes out."""
        return Call((), {}, flows, shapes)
