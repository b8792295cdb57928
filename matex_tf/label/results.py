"""What a training script writes in a round, and what it must not train on."""

from __future__ import annotations

import contextlib
import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from matex_tf.errors import DataError


@dataclass
class Result:
    """What a round has given. Arrays as in `rounds`; `groups` are the ids of the classes."""

    number: int
    groups: list[int]
    suggestions: np.ndarray
    features: np.ndarray | None
    disagreement: np.ndarray | None
    semi: bool

    def same_as(self, other: Result | None) -> bool:
        """Whether both hold the same arrays."""
        return other is not None and all(
            mine is its if mine is None or its is None else np.array_equal(mine, its)
            for mine, its in (
                (self.suggestions, other.suggestions),
                (self.features, other.features),
                (self.disagreement, other.disagreement),
            )
        )


def written(place: Path) -> list[int]:
    """When a script has written what it may write in a round, in ns; suggestions last, 0 for nothing."""
    names = ("features.npy", "disagreement.npy", "suggestions.npy")
    return [path.stat().st_mtime_ns if (path := place / name).exists() else 0 for name in names]


def held_out(labels: np.ndarray, share: float) -> np.ndarray:
    """Which labels are kept for measuring: of each class the same share, always the same images.

    An image that is held out stays so when others get labels, or it would be measured on what it was trained on.
    """
    place = np.random.default_rng(0).random(len(labels)) < share
    held = place & (labels >= 0)
    for label in np.unique(labels[labels >= 0]):
        members = np.flatnonzero(labels == label)
        if held[members].all():  # a class must have something to learn from
            held[members] = False
    return held


def read_log(path: Path) -> list[dict[str, float]]:
    """The rows of a CSVLogger that are complete; numbers alone."""
    try:
        text = path.read_text()
    except OSError:
        return []
    rows = []
    for row in csv.DictReader(text[: text.rfind("\n") + 1].splitlines()):
        with contextlib.suppress(TypeError, ValueError):
            rows.append({name: float(value) for name, value in row.items() if name and value not in ("", "NA")})
    return rows


def read_array(path: Path, shape: tuple[int | None, ...]) -> np.ndarray | None:
    """An array that a script has written, float32; None where it has not.

    Raises:
        DataError: it has another shape, or is not of numbers.
    """
    if not path.exists():
        return None
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path.name} of the script cannot be read ({error}).") from None
    fits = array.ndim == len(shape) and all(
        want in (None, have) for want, have in zip(shape, array.shape, strict=False)
    )
    if not fits or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        wanted = " x ".join("any" if want is None else str(want) for want in shape)
        raise DataError(f"{path.name} of the script is {array.dtype} {array.shape}; it must be {wanted} numbers.")
    return array.astype(np.float32)
