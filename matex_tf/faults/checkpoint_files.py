"""The file of a checkpoint: its name, and what is in it.

A file begins with a line that says what it is, holds plain values (see `plain_encoder`), and ends in their length and a
checksum. It is written to a draft, which is flushed to disk and then gets the file's name.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import zlib
from dataclasses import dataclass
from typing import Any, BinaryIO

from matex_tf.errors import MatexError
from matex_tf.storage import plain_encoder
from matex_tf.storage.private_directory import Folder

_MAGIC = b"matex_tf checkpoint 2\n"
_END = struct.Struct("<QI")  # bytes of the content, and their crc32
_CHUNK = 1 << 20
_NAME = re.compile(r"(fit|elastic)-(\d+)\.(?:done|epoch-(\d+)\.step-(\d+))")


class Damaged(MatexError):
    """A checkpoint is not what was written."""


@dataclass(frozen=True, order=True)
class Place:
    """Where in a script a checkpoint was taken.

    Attributes:
        fit: which of the script's calls of `fit`, from 1.
        epoch, step: what was about to begin, from 0; both -1 where the fit was complete.
        what: "fit", or "elastic" for a function of a Horovod script, whose commits are counted as epochs.
    """

    fit: int
    epoch: int = -1
    step: int = -1
    what: str = "fit"

    @property
    def done(self) -> bool:
        """Whether the fit was complete."""
        return self.epoch < 0

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"{self.what}-{self.fit:04d}" + (
            ".done" if self.done else f".epoch-{self.epoch:06d}.step-{self.step:09d}"
        )

    @classmethod
    def of(cls, name: str) -> Place | None:
        """The place of a file; None where it is not a checkpoint."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        what, fit, epoch, step = found.groups()
        return cls(int(fit), int(epoch or -1), int(step or -1), what)

    def __str__(self) -> str:
        if self.what == "elastic":
            return f"commit {self.epoch} of elastic function {self.fit}"
        if self.done:
            return f"the end of fit {self.fit}"
        return f"step {self.step + 1} of epoch {self.epoch + 1} of fit {self.fit}"


def draft_of(name: str) -> str:
    """The name that a file has while it is written."""
    return f".{name}.draft"


def is_draft(name: str) -> bool:
    """Whether a file is the draft of a checkpoint."""
    return name.startswith(".") and name.endswith(".draft") and Place.of(name[1 : -len(".draft")]) is not None


class _Checked:
    """A file that counts and sums up what is written to it."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.size = self.sum = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.sum = zlib.crc32(view, self.sum)
        self.size += view.nbytes
        return self._file.write(view)


def write(folder: Folder, name: str, state: Any) -> None:
    """Put a file in place, whole, whatever happens meanwhile.

    Args:
        state: a plain value.

    Raises:
        NotPlain: it is not.
        OSError: it cannot be written. Nothing is left of the attempt.
    """
    draft = draft_of(name)
    folder.remove(draft)  # of a job that was killed
    try:
        with folder.create(draft) as file:
            file.write(_MAGIC)
            checked: Any = _Checked(file)
            plain_encoder.dump(state, checked)
            file.write(_END.pack(checked.size, checked.sum))
            file.flush()
            os.fsync(file.fileno())
        folder.replace(name, draft)
    except BaseException:
        with contextlib.suppress(OSError):
            folder.remove(draft)
        raise
    folder.flush()


def read(folder: Folder, name: str) -> Any:
    """What `write` was given.

    Args:
        folder: that of the checkpoints.
        name: of the file in it.

    Raises:
        Damaged: the file is truncated, its checksum is wrong, or it is not this version's.
        OSError: it cannot be read.
    """
    path = folder.path / name
    with folder.open(name) as file:
        size = os.fstat(file.fileno()).st_size - len(_MAGIC) - _END.size
        if file.read(len(_MAGIC)) != _MAGIC or size < 0:
            raise Damaged(f"{path} is truncated, or not a checkpoint of this version.")
        found, left = 0, size
        while left > 0 and (data := file.read(min(_CHUNK, left))):
            found = zlib.crc32(data, found)
            left -= len(data)
        length, expected = _END.unpack(file.read(_END.size))
        if length != size:
            raise Damaged(f"{path} is truncated: it has {size} bytes of content, and should have {length}.")
        if found != expected:
            raise Damaged(f"{path} is damaged: its checksum is wrong.")
        file.seek(len(_MAGIC))
        try:
            return plain_encoder.load(file)
        except plain_encoder.Malformed as error:
            raise Damaged(f"{path} is damaged: {error}.") from None
