"""Rounds of training: what a page hands to a training script, and what it takes back, all by plain files.

A round is a directory. The script finds in it what people have labelled, and writes there what it makes of the rest:

    task.json        classes, and how to train
    images.npy       (images, height, width, channels) of uint8, or (images, columns) of float32
    labels.npy       (images,) of int64: the number of the class, -1 without a label
    held_out.npy     (images,) of bool: labels to measure with, not to train on
    log.csv          written by the script, a row an epoch, as by keras.callbacks.CSVLogger
    suggestions.npy  written by the script: probabilities (images, classes)
    features.npy     the same, if it likes: (images, width), for the map and for what to ask
    disagreement.npy the same, if it likes: (images,), how far answers for augmented images are apart

A script may write suggestions more than once in a round: the page shows what is there. It may end after a round; it is
then started anew for the next one. Or it takes one round after the other from `rounds`, and starts only once.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from matex_tf.errors import DataError

#: The variable that names the directory of the round with which a script begins.
DIRECTORY = "LABEL_ROUND"
DONE, STOP, HURRY = "done", "stop", "hurry"
_PAUSE = 0.05  # between looks for the next round
_NAME = re.compile(r"round-(\d{5})")


@dataclass
class Task:
    """What a page asks of a script.

    Attributes:
        classes: names of the groups.
        semi: whether to learn from images without a label (FixMatch), and threshold, how sure to be of one for that.
        steps, batch: of training.
        augment: what does not change what an image shows: none, shift, flip or rotate.
        model, weights: a network, and a file of weights for it.
        fresh: whether to forget the weights of the round before.
        seed: of all that is drawn.
    """

    classes: list[str]
    semi: bool = True
    threshold: float = 0.95
    steps: int = 150
    batch: int = 32
    augment: str = "flip"
    model: str = "small"
    weights: str = ""
    fresh: bool = False
    seed: int = 0
    folder: str = field(default="", repr=False)

    def load(self, name: str) -> np.ndarray:
        """An array of the round, by the name of its file."""
        return np.load(Path(self.folder, f"{name}.npy"), allow_pickle=False)

    def hurry(self) -> bool:
        """Whether people have gone on since, so that the next round waits for the end of this one."""
        return Path(self.folder, HURRY).exists()


def begin(folder: Path, number: int, task: Task, labels: np.ndarray, held_out: np.ndarray) -> Path:
    """Make the directory of a round; a script sees all of it, or nothing. Returns the directory.

    Args:
        folder: in which rounds are; `images.npy` is there.
        number: of the round, from 1.
        task: what is asked of the script.
        labels: (images,) whole numbers, the number of the class, -1 without a label.
        held_out: (images,) of bool, see `held_out`.
    """
    draft, place = folder / f"draft-{number:05}", name(folder, number)
    draft.mkdir()
    (draft / "task.json").write_text(json.dumps({**asdict(task), "folder": ""}))
    np.save(draft / "labels.npy", labels.astype(np.int64))
    np.save(draft / "held_out.npy", held_out.astype(bool))
    os.symlink(folder / "images.npy", draft / "images.npy")
    draft.rename(place)
    return place


def read(folder: str | os.PathLike[str]) -> Task:
    """The task of a round."""
    return Task(**{**json.loads(Path(folder, "task.json").read_text()), "folder": os.fspath(folder)})


def rounds() -> Iterator[Task]:
    """The rounds, one after the other, for a script that stays: the first, and each next one once it is there.

    A round counts as done when the next is asked for. Each rank waits by itself, for files that do not change: no
    collective, no message, hardly any of a core.
    """
    place = Path(os.environ[DIRECTORY])
    while True:
        while not place.exists():
            if (place.parent / STOP).exists():
                return
            time.sleep(_PAUSE)
        yield read(place)
        (place / DONE).touch()
        found = _NAME.fullmatch(place.name)
        assert found is not None
        place = name(place.parent, int(found[1]) + 1)


def name(folder: Path, number: int) -> Path:
    """The directory of the round `number` in `folder`, whether it is there or not."""
    return folder / f"round-{number:05}"


# What a script writes


@dataclass
class Result:
    """What a round has given. Arrays as above; `groups` are the ids of the classes."""

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
    """Which labels are kept for measuring: of each class about the same share, always the same images; (images,) of
    bool.

    An image that is held out stays so when others get labels, or it would be measured on what it was trained on.

    Args:
        labels: (images,) whole numbers, the number of the class, -1 without a label.
        share: the part of them, from 0 to 1.
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
    """An array that a script has written, as float32; None where it has not.

    Args:
        path: of the .npy file.
        shape: that it must have; None for any size along an axis.

    Raises:
        DataError: it has another shape, cannot be read, or is not of numbers.
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
