"""Memory that a rank gives back and wants again at once stays with it.

glibc maps large blocks anew for each request, and gives what is free at the end of its memory back to the system, which
clears it before it hands it out again. Both thresholds grow with the largest block that has been freed, up to 32 MB and
twice that. A rank has a part of each batch, so its blocks are smaller than those of one rank, its thresholds stay
lower, and it spends more on memory for the same data. So they begin here where they would end.

Relies on `mallopt` of glibc (public); done without where that is missing, or the user has said something of it.
"""

from __future__ import annotations

import ctypes
import os
from types import ModuleType

from matex_tf.patches.common import wrapping

#: Of <malloc.h>: when memory at the end is given back, and from which size on a block is mapped by itself; in bytes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = (-1, 64 << 20), (-3, 32 << 20)


def install(module: ModuleType) -> None:
    """Before TensorFlow allocates."""
    said = any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    if wrapping.alone() or said:
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        for name, value in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            library.mallopt(name, value)
