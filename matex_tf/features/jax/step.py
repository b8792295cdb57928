"""A step of a model, compiled for all ranks: JAX gets the rows of a batch in parts, and XLA divides the work by them.

The program is that of one rank, for the number of rows that one rank has: where the ranks' parts are not of one size,
rows of zeros are added outside, and cut off inside. What is whole on one rank is whole on every rank after the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from matex_tf.core import trace, world
from matex_tf.core.mismatch import checksum
from matex_tf.errors import RanksDisagree
from matex_tf.features.jax import place as places
from matex_tf.features.jax import team as team_module
from matex_tf.patches.common import log_once, under_way
from matex_tf.state import run_state
from matex_tf.watching.meter import Meter


class Form(NamedTuple):
    """What a program is compiled for, beside the shapes of its arrays.

    Attributes:
        structure: how a batch is made of its arrays.
        in_parts: for each of these, whether the ranks share its rows.
        rows: how many one rank would have.
    """

    structure: Any
    in_parts: tuple[bool, ...]
    rows: int


class CompiledStep:
    """What stands for `jax.jit(step)`; called with the state of a model and a batch that every rank has whole."""

    def __init__(self, step: Callable[[Any, Any], Any], place: places.Place, layouts: Any = None):
        """Args:
        step: of Keras or of the script, gives (anything, the new state).
        place: where batches lie.
        layouts: how each array of the state lies, in the structure of the state; None: each is whole on every rank.
        """
        import jax

        self._step, self._place, self._layouts = step, place, layouts
        self._team = team_module.current()
        given = place.whole if layouts is None else (place.whole, layouts)
        self._program = jax.jit(self._run, static_argnums=2, donate_argnums=0, out_shardings=given)

    def __call__(self, state: Any, batch: Any) -> Any:
        """Returns: what the step does; its first part is this rank's own, the state one of all ranks."""
        import jax

        leaves, structure = jax.tree.flatten(batch)
        rows = next((leaf.shape[0] for leaf in leaves if np.ndim(leaf)), 0)
        form = Form(structure, tuple(bool(np.ndim(leaf)) and leaf.shape[0] == rows > 0 for leaf in leaves), rows)
        _meet(leaves)
        place = self._place
        pairs = zip(leaves, form.in_parts, strict=True)
        parts = [place.my_rows(leaf) if split else place.of_all(leaf) for leaf, split in pairs]
        placed = (state,) if self._layouts is None else (state, self._layouts)
        with under_way.having(in_step=True):
            result, state = self._program(jax.tree.map(place.of_all, *placed), parts, form)
        if world.current().location.startswith("train"):
            run_state.current().part(Meter).count(rows)
        return self._team.own(result), state

    def _run(self, state: Any, parts: list[Any], form: Form) -> Any:
        """The program."""
        import jax

        def whole(part: Any, split: bool) -> Any:
            return jax.lax.with_sharding_constraint(part[: form.rows], self._place.rows) if split else part

        leaves = [whole(*one) for one in zip(parts, form.in_parts, strict=True)]
        return self._step(state, jax.tree.unflatten(form.structure, leaves))


def _meet(leaves: list[Any]) -> None:
    """Wait for all ranks before a step, since a rank that waits for another inside of it waits for ever.

    Raises:
        RanksDisagree: they have other steps, or other batches.
    """
    described = [f"{np.result_type(leaf)} {np.shape(leaf)}" for leaf in leaves]
    marks = [f"values with checksum {checksum(np.asarray(leaf)):08x}" for leaf in leaves]
    ranks = world.current()
    what = f"compute a {ranks.location.partition(' ')[0]} step"
    try:
        with trace.span("wait", what):
            ranks.barrier(what, [*described, *marks])
    except RanksDisagree as error:
        if f"differ in: {what}" in str(error):
            raise RanksDisagree(
                f"{error} Every rank makes the whole data, and takes its rows: {log_once.LIKELY}."
            ) from error
        raise


def alike(state: Any) -> Any:
    """The state of a model as rank 0 has it, where training begins."""
    import jax

    ranks = world.current()
    leaves, structure = jax.tree.flatten(state)
    if not all(leaf.is_fully_addressable for leaf in leaves):
        return state  # of all ranks already
    ranks.barrier("share the weights of the model", [f"{leaf.dtype} {leaf.shape}" for leaf in leaves])
    marks = np.array(
        ranks.allgather([checksum(np.asarray(leaf)) for leaf in leaves], "compare the weights of the model")
    )
    team_module.current().meet()
    for place in np.flatnonzero((marks != marks[0]).any(axis=0)):
        shared = ranks.broadcast_array(np.asarray(leaves[place]))
        leaves[place] = jax.device_put(shared, team_module.current().device)
    return jax.tree.unflatten(structure, leaves)
