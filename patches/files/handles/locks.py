"""`fcntl.flock` and `lockf` of a file that is real on one rank: the others have nothing to lock, and get what they ask.

What takes the place of the file there is /dev/null to whoever asks for its descriptor, and all ranks would lock that.

Relies on: `fcntl.flock`, `fcntl.lockf`, public.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from matex_tf.patches.files.wrapping import wrap


def install(module: ModuleType) -> None:
    """Patch fcntl."""
    wrap(module, "flock", _lock)
    wrap(module, "lockf", _lock)


def _lock(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    file: Any = args[0] if args else None
    handle = file.fileno() if hasattr(file, "fileno") else file
    if isinstance(handle, int) and handle >= 0 and os.path.samestat(os.fstat(handle), os.stat(os.devnull)):
        return None
    return wrapped(*args, **kwargs)
