"""Scores of rows that a training has left behind (`--sample-scores`): people look at the hardest ones first."""

from __future__ import annotations

import csv

import numpy as np

from matex_tf.errors import DataError

_COLUMNS = ["row", "score", "used"]


def read(path: str, count: int) -> np.ndarray:
    """The score of each image, float32 (count,); NaN where a row has none. Row n is image n.

    Args:
        path: a file that `matex-tf run --sample-scores` has written.
        count: how many images there are.

    Raises:
        DataError: it cannot be read, or is of other rows than those of the images.
    """
    scores = np.full(count, np.nan, np.float32)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            if next(lines, None) != _COLUMNS:
                raise DataError(f"{path} does not begin with {','.join(_COLUMNS)}: is it of --sample-scores?")
            for number, line in enumerate(lines, 2):
                try:
                    row, score = int(line[0]), float(line[1] or "nan")
                except (ValueError, IndexError):
                    raise DataError(f"{path}, line {number}: no row and score.") from None
                if not 0 <= row < count:
                    raise DataError(
                        f"{path}, line {number}: row {row}, and there are {count:,} images, from 0: the scores have to "
                        "be of the rows of these images, in their order."
                    )
                scores[row] = score
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}).") from None
    return scores


def hardest(images: np.ndarray, scores: np.ndarray, most: int) -> np.ndarray:
    """Of some images those with the highest scores first, and last those without one.

    Args:
        images: numbers of images, whole numbers (n,).
        scores: of all images, see `read`.
        most: how many are returned at most.
    """
    return images[np.argsort(-np.nan_to_num(scores[images], nan=-np.inf), kind="stable")[:most]]
