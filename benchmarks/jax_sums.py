"""Milliseconds of a sum of gradients over ranks in a program that JAX has compiled: by Gloo, which XLA calls, and
by matex_tf's exchange, which a callback of Python calls. The median of the slowest rank's times, and the least.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import launching, tables

#: Shapes of the gradients of a model.
MODELS: dict[str, list[tuple[int, ...]]] = {
    "LeNet, 10 gradients, 247 kB": [
        *((5, 5, 1, 6), (6,), (5, 5, 6, 16), (16,), (400, 120), (120,), (120, 84), (84,), (84, 10), (10,)),
    ],
    "10 gradients of 1 MB": [(250_000,)] * 10,
}
WAYS = ("gloo", "callback")


def measure(rounds: int) -> None:
    """On a rank: time both ways in turn."""
    from matex_tf.core import world

    found: dict[str, dict[str, list[float]]] = {}
    ranks = world.current()
    for name, shapes in MODELS.items():
        random = np.random.default_rng(ranks.rank)
        own = [random.normal(size=shape).astype(np.float32) for shape in shapes]
        calls = {"gloo": _by_gloo(own), "callback": _by_callback(own)}
        first, second = (calls[way]() for way in WAYS)
        for one, other in zip(first, second, strict=True):
            np.testing.assert_allclose(np.asarray(one.addressable_data(0)), np.asarray(other), rtol=1e-5)
        spent: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way in WAYS:
                ranks.barrier("begin")
                begun = time.perf_counter()
                calls[way]()
                spent[way].append(time.perf_counter() - begun)
        everyone = ranks.allgather([spent[way] for way in WAYS], "compare sums")
        slowest = np.array(everyone).max(axis=0)
        found[name] = {way: (1000 * np.quantile(slowest[place], [0.5, 0])).tolist() for place, way in enumerate(WAYS)}
    launching.tell(found)


def _by_gloo(own: list[np.ndarray]) -> Callable[[], Any]:
    import jax

    from matex_tf.features.jax import team

    team.current().meet()
    device, place = team.current().device, team.current().place
    size = place.parts
    parts = [
        jax.make_array_from_single_device_arrays((size, *one.shape), place.rows, [jax.device_put(one[None], device)])
        for one in own
    ]
    program = jax.jit(lambda arrays: [array.sum(axis=0) for array in arrays], out_shardings=place.whole)
    return lambda: jax.block_until_ready(program(parts))


def _by_callback(own: list[np.ndarray]) -> Callable[[], Any]:
    import jax
    from jax.experimental import io_callback

    from matex_tf.core import world
    from matex_tf.exchange import process_group
    from matex_tf.exchange.bucket import BucketPlan

    names = [f"gradient {number}" for number in range(len(own))]
    plan = BucketPlan("benchmark", names, [one.shape for one in own], [one.dtype for one in own], 1 << 25)

    def exchange(*arrays: Any) -> Any:
        return process_group.sum_planned(world.current(), plan, list(map(np.asarray, arrays)))

    shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in own]
    arrays = list(map(jax.numpy.asarray, own))
    program = jax.jit(lambda arrays: io_callback(exchange, shapes, *[2.0 * one for one in arrays], ordered=True))
    halves = [one / 2 for one in arrays]
    return lambda: jax.block_until_ready(program(halves))


def main() -> int:
    parser = tables.parser("jax_sums", __doc__)
    parser.add_argument("-n", type=int, default=2, dest="ranks", help="ranks")
    parser.add_argument("--rounds", type=int, default=200, help="sums that are timed, by each way")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = tables.parse(parser)
    if options.rank:
        import keras  # noqa: F401, lets JAX know of the ranks

        measure(options.rounds)
        return 0
    words = ["-m", "matex_tf", "-m", "benchmarks.jax_sums", "--rank", "--rounds", str(options.rounds)]
    found = launching.on_ranks(options.ranks, words, environ={"KERAS_BACKEND": "jax"})
    rows = [[name, *(f"{one[way][0]:.2f} ({one[way][1]:.2f})" for way in WAYS)] for name, one in found.items()]
    columns = ["gradients", "Gloo in XLA", "matex_tf by a callback"]
    tables.show("milliseconds of a sum, and the least", columns, rows, less=columns[1:3])
    tables.keep(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
