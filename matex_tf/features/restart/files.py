"""The file of a checkpoint: its name, and what is in it.

A file begins with a line that says what it is, holds plain values (see `plain_encoder`), and ends in their length and a
checksum. It is written to a draft, which is flushed to disk and then gets the file's name.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from typing import Any, BinaryIO

from matex_tf.errors import MatexError
from matex_tf.faults.place import Place
from matex_tf.storage import plain_encoder
from matex_tf.storage.private_directory import Folder

_MAGIC = b"matex_tf checkpoint 2\n"
_END = struct.Struct("<QI")  # bytes of the content, and their crc32
_CHUNK = 1 << 20


class Damaged(MatexError):
    """A checkpoint is not what was written."""


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
