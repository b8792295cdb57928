"""The tensors that a step gets of a batch: ragged and sparse leaves as the tensors that they are made of.

How many values a row of such a leaf has is in the data. So its values are no rows for a step that is rebuilt: every
rank gets those of the whole batch, which takes little where they are ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from matex_tf.patches.across_rows import whole_batch
from matex_tf.patches.common import row_slicing
from matex_tf.patches.common.row_slicing import RowRange


class Leaves:
    """How the leaves of batches of one spec become the tensors of a step.

    Attributes:
        specs: of the tensors, with any number of rows; rows: whether a rank's rows are cut out of each.
        columns: their shapes, in which None is the number of rows; not known at all, if data says it.
        are_tensors: whether each leaf is a tensor, and its own only one.
    """

    def __init__(self, spec: Any, slices: Sequence[bool]):
        """Args: spec: of a batch; slices: for each of its leaves, whether its first axis runs over rows."""
        self._spec, self._kinds = spec, list(zip(tf.nest.flatten(spec), slices, strict=True))
        self.are_tensors = has_tensors_alone(spec)
        every = [one for leaf, has_rows in self._kinds for one in _specs(leaf, has_rows)]
        self.specs = [one for one, _, _ in every]
        self.rows = [cut for _, cut, _ in every]
        self.columns = [tf.TensorShape(None) if is_open else one.shape for one, _, is_open in every]

    def traced(self, step: Callable[[Any], Any], given: Any, by_xla: bool) -> Any:
        """A step of a batch as a concrete function of its tensors.

        Args:
            step: a function of a batch. given: specs of the batch, or of one size. by_xla: whether XLA compiles it.
        """
        if self.are_tensors:
            return tf.function(step, jit_compile=by_xla or None).get_concrete_function(given)

        @tf.autograph.experimental.do_not_convert
        def of_tensors(*tensors: Any) -> Any:
            return step(self._packed(tensors))

        specs = [
            tf.TensorSpec(None, one.dtype) if shape.rank is None else one
            for one, shape in zip(self.specs, self.columns, strict=True)
        ]
        return tf.function(of_tensors, jit_compile=by_xla or None).get_concrete_function(*specs)

    def whole(self, data: Any, slices: Sequence[bool], share: RowRange) -> list[Any]:
        """What `traced` is called with, for the whole batch. All ranks come here.

        Args:
            data, slices, share: see `whole_batch.of`.
        """
        data = whole_batch.of(data, slices, share)
        return [data] if self.are_tensors else self._tensors(tf.nest.flatten(data))

    def mine(self, data: Any, share: RowRange) -> list[Any]:
        """The tensors for a step that is rebuilt: those with rows as they are. All ranks come here if some leaves are
        no tensors.

        Args:
            data: the batch, or this rank's rows of it, nested. share: the rows of it that this rank answers for.
        """
        leaves = tf.nest.flatten(data)
        if not self.are_tensors:
            leaves = [
                whole_batch.of([leaf], [True], share)[0] if has_rows and not _is_tensor(of) else leaf
                for leaf, (of, has_rows) in zip(leaves, self._kinds, strict=True)
            ]
        return self._tensors(leaves)

    def _tensors(self, leaves: Sequence[Any]) -> list[Any]:
        return [one for leaf in leaves for one in _parts(leaf)]

    def _packed(self, tensors: Sequence[Any]) -> Any:
        given = iter(zip(tensors, self.specs, strict=True))
        leaves = []
        for leaf, has_rows in self._kinds:
            own = [next(given) for _ in _specs(leaf, has_rows)]
            parts = [one if shape.shape.rank is None else _of_rank(one, shape.shape) for one, shape in own]
            leaves.append(_made(leaf, parts))
        return tf.nest.pack_sequence_as(self._spec, leaves)


def has_tensors_alone(data: Any) -> bool:
    """Whether no leaf of a batch, or of its specs, is ragged or sparse."""
    return all(map(_is_tensor, tf.nest.flatten(data)))


def spec_of(data: Any, slices: Sequence[bool], is_open: bool) -> Any:
    """Specs of such batches with any number of rows.

    Args:
        data: a batch, nested. slices: for each of its leaves, whether its first axis runs over rows.
        is_open: whether sparse leaves have any width too: that of a rank's rows need not be the batch's.
    """
    spec = row_slicing.relaxed(data, slices)
    if not is_open:
        return spec
    leaves = [
        tf.SparseTensorSpec([leaf.shape[0], *[None] * (leaf.shape.rank - 1)], leaf.dtype)
        if isinstance(leaf, tf.SparseTensorSpec)
        else leaf
        for leaf in tf.nest.flatten(spec)
    ]
    return tf.nest.pack_sequence_as(spec, leaves)


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, (tf.Tensor, tf.TensorSpec, type(None)))


def _of_rank(tensor: Any, shape: tf.TensorShape) -> Any:
    """A tensor of whose shape nothing is known when a step is rebuilt: all but its first size is."""
    is_known = tensor.shape.rank is not None or None in shape[1:].as_list()
    return tensor if is_known else tf.reshape(tensor, [-1, *shape[1:]])


def _specs(leaf: Any, has_rows: bool) -> list[tuple[tf.TensorSpec, bool, bool]]:
    """Of each tensor of a leaf: its spec, whether rows are cut out of it, whether data says its size."""
    if leaf is None:
        return []
    if isinstance(leaf, tf.RaggedTensorSpec):
        values = tf.TensorSpec([None, *leaf.shape[leaf.ragged_rank + 1 :]], leaf.dtype)
        numbers = tf.TensorSpec([None], leaf.row_splits_dtype)
        places = [(numbers, False, True)] * leaf.ragged_rank
        return [(numbers, False, not has_rows), *places, (values, False, True)]
    if isinstance(leaf, tf.SparseTensorSpec):
        rank = leaf.shape.rank
        sizes, marks = tf.TensorSpec([rank], tf.int64), tf.TensorSpec([None], tf.bool)
        indices, values = tf.TensorSpec([None, rank], tf.int64), tf.TensorSpec([None], leaf.dtype)
        return [(marks, False, not has_rows), (sizes, False, False), (indices, False, True), (values, False, True)]
    return [(leaf, has_rows, False)]


def _parts(leaf: Any) -> list[Any]:
    """The tensors of a leaf of a batch, as `_specs` says. The first has an element for each row."""
    if leaf is None:
        return []
    if isinstance(leaf, tf.RaggedTensor):
        return [leaf.row_lengths(), *leaf.nested_value_rowids(), leaf.flat_values]
    if isinstance(leaf, tf.SparseTensor):
        return [tf.zeros(leaf.dense_shape[:1], tf.bool), leaf.dense_shape, leaf.indices, leaf.values]
    return [leaf]


def _made(leaf: Any, parts: list[Any]) -> Any:
    if leaf is None:
        return None
    if isinstance(leaf, tf.RaggedTensorSpec):
        lengths, *places, values = parts
        rows = [tf.shape(one, leaf.row_splits_dtype)[0] for one in (lengths, *places[:-1])]
        return tf.RaggedTensor.from_nested_value_rowids(values, places, rows, validate=False)
    if isinstance(leaf, tf.SparseTensorSpec):
        marks, sizes, indices, values = parts
        fixed = [sizes[axis] if size is None else size for axis, size in enumerate(leaf.shape)][1:]
        rows = tf.shape(marks, tf.int64)[:1]
        shape = tf.concat([rows, *([tf.cast(tf.stack(fixed), tf.int64)] if fixed else [])], 0)
        return tf.SparseTensor(indices, values, shape)
    return parts[0]
