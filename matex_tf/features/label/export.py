"""What people have said, in files for others: a table of all images, and an HDF5 file that `DataSet` reads."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np

from matex_tf.errors import DataError
from matex_tf.features.label.board import Board

_COLUMNS = ("image", "label", "source", "confidence", "votes")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet would begin to compute


def table(board: Board) -> bytes:
    """A row for each image: its name, its label, whether people or the network gave it, how sure that is, and votes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in board.export_rows():
        writer.writerow(["'" + value if value.startswith(_FORMULA) else value for value in row])
    return text.getvalue().encode()


def hdf5(board: Board, size: int, target: Any) -> int:
    """Write the images that people agree on: `images`, `labels` from 0, and `names`; the names of the classes are an
    attribute of the labels. Returns how many.

    Args:
        size: in pixels across.
        target: a path, or a file that can be read and written.

    Raises:
        DataError: nobody has labelled anything, or an image cannot be read.
    """
    import h5py

    groups, labelled = board.labels()
    if not labelled:
        raise DataError("nobody has labelled an image yet.")
    place = {group: number for number, (group, _) in enumerate(groups)}
    images = sorted(labelled)
    rows = [board.images.numbers(image, size) for image in images]
    if len({row.shape for row in rows}) > 1:  # some grey, some in colour
        rows = [np.repeat(row, 3, axis=2) if row.shape[2] == 1 else row for row in rows]
    with h5py.File(target, "w") as file:
        file.create_dataset(
            "images", data=np.stack(rows), compression="gzip", chunks=(min(len(rows), 100), *rows[0].shape)
        )
        file.create_dataset("labels", data=np.array([place[labelled[image]] for image in images], np.int64))
        file.create_dataset("names", data=[board.images.names[image] for image in images], dtype=h5py.string_dtype())
        file["labels"].attrs["classes"] = [name for _, name in groups]
    return len(images)
