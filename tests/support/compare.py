"""Compare what ranks returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

#: What hears that a test has found answers to be those of one rank, see `tests/features/verify/verified.py`.
hearing: list[Callable[[], None]] = []


def same(results: dict[int, list[Any]], rtol: float = 1e-5, atol: float = 1e-6) -> Any:
    """Every rank of every size has what the one rank of size 1 has.

    Args:
        results: what `ranks` gave; size 1 is the reference.
        rtol: for floating-point numbers, relative; in an array, relative to its largest entry (an entry that is a
            difference of large ones has no more digits than they have). Everything else must be equal.
        atol: for floating-point numbers near zero.

    Returns:
        The reference.
    """
    reference = results[1][0]
    for size, values in results.items():
        for rank, value in enumerate(values):
            differences = list(difference(reference, value, rtol, atol))
            assert not differences, f"rank {rank} of {size} differs from one rank:\n" + "\n".join(differences[:12])
    for hear in hearing:
        hear()
    return reference


def rows_of_batch(parts: Sequence[np.ndarray], total: int) -> np.ndarray:
    """The rows of a batch of which each rank saw a part, or all of them: Python in a partitioned step gets whole
    batches, the same on every rank.

    Args:
        parts: by rank, (rows, ...); total: rows of the batch.
    """
    if all(len(part) == total for part in parts):
        assert all(np.array_equal(part, parts[0]) for part in parts), "ranks saw different batches"
        return parts[0]
    return np.concatenate(parts)


def alike(results: dict[int, list[Any]], rtol: float = 0.0, atol: float = 0.0) -> None:
    """Within each size, every rank has what rank 0 has."""
    for size, values in results.items():
        for rank, value in enumerate(values):
            differences = list(difference(values[0], value, rtol, atol))
            assert not differences, f"rank {rank} of {size} differs from rank 0:\n" + "\n".join(differences[:12])


def difference(expected: Any, got: Any, rtol: float, atol: float, path: str = "result") -> Iterator[str]:
    """Where two nested structures differ, and by how much."""
    if isinstance(expected, dict) and isinstance(got, dict):
        if sorted(expected) != sorted(got):
            yield f"{path}: keys {sorted(expected)} on one rank, {sorted(got)} here"
        for key in expected:
            if key in got:
                yield from difference(expected[key], got[key], rtol, atol, f"{path}.{key}")
    elif isinstance(expected, (list, tuple)) and isinstance(got, (list, tuple)):
        if len(expected) != len(got):
            yield f"{path}: {len(expected)} items on one rank, {len(got)} here: {expected!r:.200} and {got!r:.200}"
        for position, (a, b) in enumerate(zip(expected, got, strict=False)):
            yield from difference(a, b, rtol, atol, f"{path}[{position}]")
    elif isinstance(expected, (float, np.floating, np.ndarray)) and isinstance(
        got, (int, float, np.number, np.ndarray)
    ):
        a, b = np.asarray(expected), np.asarray(got)
        if a.shape != b.shape or a.dtype != b.dtype:
            yield f"{path}: {a.dtype} {a.shape} on one rank, {b.dtype} {b.shape} here"
        elif a.dtype.kind not in "fc":
            if not np.array_equal(a, b):
                yield f"{path}: {a!r:.200} on one rank, {b!r:.200} here"
        elif not np.array_equal(np.isfinite(a), np.isfinite(b)):
            yield f"{path}: {a!r:.200} on one rank, {b!r:.200} here (not finite in other places)"
        elif np.isfinite(a).any():
            a, b = a[np.isfinite(a)], b[np.isfinite(a)]
            off, scale = np.abs(b - a).max(), np.abs(a).max()
            if off > atol + rtol * scale:
                yield f"{path}: {a!r:.200} on one rank, {b!r:.200} here (off by {off:.2g}, {off / scale:.2g} of it)"
    elif expected != got or type(expected) is not type(got):
        yield f"{path}: {expected!r:.200} on one rank, {got!r:.200} here"
