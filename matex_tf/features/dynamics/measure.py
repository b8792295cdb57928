"""What a model does on some rows: how its channels move together, and how much the loss minds.

For a layer that reads channels x (n of them, with a 1 appended) and computes z = xW before its activation, three things
are summed over rows and positions: x xᵀ, the squares of the loss' gradient by z, and how many there were. For other
readers (recurrent kernels, very wide ones) the first-order estimate has to do: w · ∂L/∂w summed over what reads a
channel is what the loss changes by when the channel is set to 0 (Molchanov et al., arXiv 1611.06440, eq. 7).

Relies on (Keras 3.3 to 3.15): `Model.compute_loss`, `Layer._flatten_layers`, and that layers look up `call` and
`activation` on themselves when they are called.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from matex_tf.features.dynamics.channels.analysis import Part
from matex_tf.features.dynamics.groups import Groups, can_change

#: Readers of more rows than this are only looked at by first order: what follows takes n³.
WIDEST = 1100
_CHUNKS = 4
_JUDGED = 1024  # rows whose gradients are looked at: means of squares need no more, and gradients take most of the time

#: Sums an array over all ranks.
Sum = Callable[[np.ndarray, str], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows that this rank looks at: some of a batch.

    Attributes:
        count: how many count; 0 for rows that are there only so that there are any.
        low: the place of the first of them in the batch of all ranks.
        total: rows of that batch; 0 where these are all.
    """

    x: Any
    y: Any
    sample_weight: Any
    count: int
    low: int = 0
    total: int = 0

    @property
    def data(self) -> tuple[Any, Any, Any]:
        """What a loss is computed from."""
        return self.x, self.y, self.sample_weight

    @property
    def nbytes(self) -> int:
        """Of all arrays together."""
        import tensorflow as tf

        leaves = tf.nest.flatten(self.data, expand_composites=True)
        tensors = [tf.convert_to_tensor(leaf) for leaf in leaves if leaf is not None]
        return sum(int(tf.size(tensor)) * tensor.dtype.size for tensor in tensors)


@dataclasses.dataclass
class Reader:
    """A reader whose inputs and outputs can be seen.

    Attributes:
        part: whose channels it reads.
        layer: that holds its kernel.
        inputs: axes of the kernel that are summed over, without those of a window.
        gram: (n + 1, n + 1), the sum of x xᵀ; the last is that of a 1.
        squares: (outputs,), the sum of the squares of the loss' gradients by z.
        inverse: of H, see choose.py, once somebody has worked it out.
    """

    part: Part
    layer: Any
    inputs: tuple[int, ...]
    gram: np.ndarray
    squares: np.ndarray
    inverse: np.ndarray | None = None


@dataclasses.dataclass
class Measured:
    """What was found out, over the rows of all ranks.

    Attributes:
        rows: how many.
        judged: of how many of these there are squares of gradients.
        readers: by the number of a part.
        first_order: by the number of a part (places,): half the mean square of what the loss would change by.
    """

    rows: float
    judged: float
    readers: dict[int, Reader]
    first_order: dict[int, np.ndarray]


class Loss:
    """The loss of a model as it is now, without dropout: compiled once, as `fit` compiles its steps."""

    def __init__(self, model: Any):
        self.model = model
        self._compiled = _compiled(model, functools.partial(_loss, model))

    def __call__(self, batch: Rows) -> float:
        """The mean over some rows.

        Raises:
            ValueError: the model has no loss that can be computed by itself.
        """
        return float(self._compiled(*batch.data))


def loss_of(model_loss: Loss, batches: Sequence[Rows], total: Sum) -> float:
    """The mean loss over the rows of all ranks; infinite where it is not a number. Collective.

    Args:
        model_loss: of a model as it is now.
        batches: of this rank; may be none.
        total: sums over ranks.

    Raises:
        ValueError: the model has no loss that can be computed by itself.
    """
    with _metrics_put_back(model_loss.model):
        losses = [model_loss(batch) * batch.count for batch in batches if batch.count]
    own = np.array([sum(losses), sum(batch.count for batch in batches)], np.float64)
    summed, rows = total(own, "watch the loss")
    return float(summed / max(rows, 1)) if np.isfinite(summed) else float("inf")


def measure(groups: Groups, batches: Sequence[Rows], total: Sum) -> Measured:
    """Look at a model while it computes some rows.

    Args:
        groups: of the model.
        batches: of this rank, as many as every other rank has.
        total: sums over ranks.
    """
    model, parts = groups.model, groups.analysis.parts
    read = {id(part) for group in groups if can_change(group) for part in group.read_by()}
    wanted = {number for number, part in enumerate(parts) if id(part) in read}
    readers = {number: found for number in sorted(wanted) if (found := _reader(model, parts[number])) is not None}
    first = {
        number: np.zeros((len(batches), _CHUNKS, len(parts[number].channels)))
        for number in sorted(wanted - set(readers))
    }
    rows = judged = 0.0
    of_all = 0
    look, products = _looks_of(model, list(readers.values())), _products_of(model, [parts[number] for number in first])
    with _metrics_put_back(model):
        for place, batch in enumerate(batches):
            judges = of_all < _JUDGED
            of_all += batch.total or batch.count
            if batch.count:
                rows += batch.count
                judged += batch.count * judges
                _look(look, batch, readers, judges)
                if first:
                    _look_first_order(products, batch, [array[place] for array in first.values()])
    arrays = [
        np.array([rows, judged]),
        *(a for one in readers.values() for a in (one.gram, one.squares)),
        *first.values(),
    ]
    flat = total(np.concatenate([array.reshape(-1) for array in arrays]), "measure the channels of the model")
    pieces = np.split(flat, np.cumsum([array.size for array in arrays])[:-1])
    shaped = iter([piece.reshape(array.shape) for piece, array in zip(pieces, arrays, strict=True)])
    rows, judged = next(shaped)
    for reader in readers.values():
        reader.gram, reader.squares = next(shaped), next(shaped)
    first = {number: 0.5 * (next(shaped) ** 2).sum((0, 1)) / max(rows, 1.0) for number in first}
    return Measured(float(rows), float(judged), readers, first)


def _reader(model: Any, part: Part) -> Reader | None:
    """How a part reads, where its layer shows it."""
    holder = next((one for one in model._flatten_layers() if getattr(one, "_kernel", None) is part.variable), None)
    kind, shape = type(holder).__name__, tuple(part.variable.shape)
    if kind == "Dense" or (kind == "EinsumDense" and len(shape) == 2):
        inputs: tuple[int, ...] = (0,)
    elif kind == "EinsumDense" and len(shape) == 3 and _sums_over_two(holder):  # heads: (H, v, d)
        inputs = (0, 1)
    elif kind in ("Conv1D", "Conv2D", "Conv3D") and (holder.data_format, holder.groups) == ("channels_last", 1):  # type: ignore[union-attr]
        inputs = (len(shape) - 2,)
    else:
        return None
    width = int(np.prod([shape[axis] for axis in inputs]))
    if width > WIDEST:
        return None
    return Reader(part, holder, inputs, np.zeros((width + 1, width + 1)), np.zeros(shape[-1]))


def _sums_over_two(layer: Any) -> bool:
    """Whether an EinsumDense sums over the last two axes of its input, the first two of its kernel."""
    reads, kernel, _ = layer.equation.replace("->", ",").split(",")
    return bool(reads[-2:] == kernel[:2])


def _look(look: Any, batch: Rows, readers: dict[int, Reader], judges: bool) -> None:
    """Add up what readers see of some rows.

    Args:
        look: see `_looks_of`.
        judges: whether gradients are looked at too.
    """
    for reader, calls in zip(readers.values(), look(*batch.data, judges), strict=True):
        width = len(reader.gram) - 1
        for inputs, gradient in calls:
            x = np.asarray(inputs, np.float64).reshape(-1, width)
            x = np.concatenate([x, np.ones((len(x), 1))], 1)
            reader.gram += x.T @ x
            if gradient is not None:
                by_output = np.asarray(gradient, np.float64).reshape(-1, len(reader.squares))
                # Of the mean's gradient: each row's is n times it.
                reader.squares += (by_output**2).sum(0) * batch.count**2


def _looks_of(model: Any, readers: Sequence[Reader]) -> Any:
    """A function of rows: of each reader, for each of its calls, what it reads, and the loss' gradient by what it
    computes; None where nobody asks for gradients or the loss does not depend on it."""
    import tensorflow as tf

    def look(x: Any, y: Any, sample_weight: Any, judges: bool) -> list[list[tuple[Any, Any]]]:
        seen: dict[int, list[tuple[Any, Any]]] = {}
        with tf.GradientTape() if judges else contextlib.nullcontext() as tape, contextlib.ExitStack() as shown:
            for reader in readers:
                shown.enter_context(_showing(reader.layer, seen.setdefault(id(reader.layer), [])))
            if judges:
                loss = _loss(model, x, y, sample_weight)
            else:
                model(x, training=False)
        outputs = [z for calls in seen.values() for _, z in calls]
        found = tape.gradient(loss, outputs) if tape is not None else [None] * len(outputs)
        gradients = dict(zip(map(id, outputs), found, strict=True))
        return [[(inputs, gradients[id(z)]) for inputs, z in seen[id(reader.layer)]] for reader in readers]

    return _compiled(model, look)


def _compiled(model: Any, function: Any) -> Any:
    """A function as a graph, where `fit` computes this model's steps as graphs."""
    import tensorflow as tf

    return function if model.run_eagerly else tf.function(function)


@contextlib.contextmanager
def _showing(layer: Any, seen: list[tuple[Any, Any]]) -> Iterator[None]:
    """Take note of what a layer reads, and of what it computes before its activation."""
    if "call" in vars(layer):  # two parts of one layer
        yield
        return
    call, activation = layer.call, layer.activation
    inputs: list[Any] = []

    def noting_call(x: Any, *args: Any, **kwargs: Any) -> Any:
        inputs.append(x)
        return call(x, *args, **kwargs)

    def noting_activation(z: Any) -> Any:
        seen.append((inputs.pop(), z))
        return z if activation is None else activation(z)

    vars(layer)["call"], vars(layer)["activation"] = noting_call, noting_activation
    try:
        yield
    finally:
        del vars(layer)["call"]
        vars(layer)["activation"] = activation


def _look_first_order(products: Any, batch: Rows, sums: Sequence[np.ndarray]) -> None:
    """Add up w · ∂L/∂w over this rank's rows of each chunk of a batch.

    Half the squares of these sums over ranks are what is wanted: over rows, the mean square of a mean of n is 1/n of
    their own. A chunk is the same rows on any number of ranks.

    Args:
        products: see `_products_of`.
    """
    import tensorflow as tf

    cuts = np.linspace(0, batch.total or batch.count, _CHUNKS + 1, dtype=int) - batch.low
    for chunk, (begin, end) in enumerate(itertools.pairwise(np.clip(cuts, 0, batch.count))):
        if begin == end:
            continue
        some = tf.nest.map_structure(
            lambda leaf: None if leaf is None else leaf[begin:end],  # noqa: B023
            batch.data,
        )
        for array, found in zip(sums, products(*some), strict=True):
            if found is not None:
                array[chunk] += (end - begin) * np.asarray(found)


def _products_of(model: Any, parts: Sequence[Part]) -> Any:
    """A function of rows: for each part the sums of w · ∂L/∂w for each place, None where the loss does not depend on
    it."""
    import tensorflow as tf

    def products(x: Any, y: Any, sample_weight: Any) -> list[Any]:
        variables = [part.variable.value for part in parts]
        with tf.GradientTape() as tape:
            loss = _loss(model, x, y, sample_weight)
        found: list[Any] = []
        for part, variable, gradient in zip(parts, variables, tape.gradient(loss, variables), strict=True):
            if gradient is None:
                found.append(None)
                continue
            product = tf.cast(variable, tf.float64) * tf.cast(tf.convert_to_tensor(gradient), tf.float64)
            found.append(tf.reduce_sum(product, [axis for axis in range(len(variable.shape)) if axis != part.axis]))
        return found

    return _compiled(model, products)


def _loss(model: Any, x: Any, y: Any, sample_weight: Any) -> Any:
    outputs = model(x, training=False)
    loss = model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=False)
    if loss is None:
        raise ValueError(f"{model.name} has no loss that can be computed by itself")
    return loss


@contextlib.contextmanager
def _metrics_put_back(model: Any) -> Iterator[None]:
    """Let losses be computed without a trace in the metrics."""
    kept = [(variable, np.array(np.asarray(variable))) for metric in model.metrics for variable in metric.variables]
    try:
        yield
    finally:
        for variable, value in kept:
            variable.assign(value)
