"""What a training leaves behind of its rows: a table of their scores, and a picture of the extremes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from matex_tf.storage import atomic_file

_SHOWN = 10  # rows of each kind in a picture
_CHANNELS = (1, 3, 4)


def numbered(path: str, fit: int) -> str:
    """The file of a fit: `scores.csv`, then `scores-2.csv`, …

    Args:
        path: as it was given, of the first.
        fit: which of the script's, from 1.
    """
    stem, extension = os.path.splitext(path)
    return path if fit == 1 else f"{stem}-{fit}{extension}"


def write_table(path: str, scores: np.ndarray, used: np.ndarray) -> None:
    """Write a CSV file of row, score and how often it was used; the score is empty where a row has none.

    Args:
        scores: float32 (rows,).
        used: (rows,), whole numbers.

    Raises:
        OSError: the file cannot be written.
    """

    def write(draft: str) -> None:
        with open(draft, "w", encoding="ascii") as file:
            file.write("row,score,used\n")
            for row, (score, count) in enumerate(zip(scores.tolist(), used.tolist(), strict=True)):
                file.write(f"{row},{score:.6g},{count}\n" if score == score else f"{row},,{count}\n")

    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    atomic_file.put(path, write)


def extremes(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows with the highest scores and with the lowest, the most extreme first; of those that have one."""
    known = np.flatnonzero(np.isfinite(scores))
    count = min(_SHOWN, len(known))
    if not count:
        return known, known
    order = known[np.argsort(scores[known], kind="stable")]
    return order[::-1][:count], order[:count]


def is_image(shape: Sequence[int]) -> bool:
    """Whether a row of this shape can be drawn: (height, width) or (height, width, channels)."""
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in _CHANNELS):
        return False
    return all(4 <= side <= 1024 for side in shape[:2])


def draw(
    path: str,
    shown: tuple[np.ndarray, np.ndarray],
    scores: np.ndarray,
    images: Mapping[int, np.ndarray],
    measure: str,
) -> str:
    """Draw the hardest and the easiest rows beside the table; gives the file, or "" where there is nothing to draw.

    Args:
        path: of the table.
        shown: see `extremes`.
        images: by row.
        measure: what the scores are.
    """
    if not images or not len(shown[0]):
        return ""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "and no picture: it needs matplotlib (pip install 'matex_tf[plots]')"
    columns = max(map(len, shown))
    figure = Figure(figsize=(1.1 * columns, 3.2))
    for line, (title, rows) in enumerate(zip(("highest", "lowest"), shown, strict=True)):
        for column, row in enumerate(rows):
            axes = figure.add_subplot(2, columns, line * columns + column + 1)
            axes.set_axis_off()
            axes.set_title(f"{'row ' if not column else ''}{row}\n{scores[row]:.3g}", fontsize=7)
            if row in images:
                axes.imshow(_drawable(images[int(row)]), cmap="gray")
        figure.text(0.01, 0.98 - 0.5 * line, f"{title} {measure}", fontsize=8, va="top")
    target = os.path.splitext(path)[0] + ".png"
    atomic_file.put(target, lambda draft: figure.savefig(draft, dpi=120, format="png"))
    return target


def _drawable(image: np.ndarray) -> np.ndarray:
    """Values from 0 to 1."""
    image = np.nan_to_num(image.astype(np.float64))
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[:, :, 0]
    low, high = image.min(), image.max()
    return np.asarray((image - low) / (high - low) if high > low else image * 0)
