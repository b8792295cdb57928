"""`np.save` and its kin put a file in its place whole: ranks that write the same file never show half of one.

In callbacks at the end of an epoch or of a training, where all ranks take the same steps, rank 0 alone writes and every
rank sees the file when the call returns. Elsewhere in a script the ranks come past such a line at different times, or
some do not at all (a cache that is there already), so they do not wait for one another there: each puts its file.

Relies on: `numpy.save`, `savez`, `savez_compressed`, `savetxt`, public.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from types import ModuleType
from typing import Any

from matex_tf.patches.common import wrapping

_ENDINGS = {"save": ".npy", "savez": ".npz", "savez_compressed": ".npz", "savetxt": ""}


def install(module: ModuleType) -> None:
    """Patch numpy."""
    for name, ending in _ENDINGS.items():
        wrapping.wrap(module, name, _whole(ending))


def _whole(ending: str) -> Any:
    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        key = next((key for key in ("file", "fname") if key in kwargs), None)
        target = kwargs[key] if key else (args[0] if args else None)
        if not isinstance(target, (str, os.PathLike)) or os.path.islink(target):
            return wrapped(*args, **kwargs)
        path = os.fspath(target)
        if isinstance(path, bytes):
            return wrapped(*args, **kwargs)
        if ending and not path.endswith(ending):
            path += ending

        def write(draft: str) -> None:
            if key:
                wrapped(*args, **{**kwargs, key: draft})
            else:
                wrapped(draft, *args[1:], **kwargs)

        if "tensorflow" not in sys.modules:  # no step is under way, and what follows would import it
            return _put(path, ending, write)
        from matex_tf.patches.fit import stopping
        from matex_tf.patches.saving import agreed_paths, model_files

        if stopping.in_step:
            taken = agreed_paths.agreed(path, "write an array")
            model_files.by_one_rank(lambda: _put(taken, ending, write), f"write {taken}", taken)
            return agreed_paths.offer(taken)
        return _put(path, ending, write)

    return wrapper


def _put(path: str, ending: str, write: Callable[[str], None]) -> None:
    """Write beside `path`, then move the whole file there."""
    kept = "".join(part for part in (".gz", ".bz2", ".xz") if path.endswith(part)) or ending
    handle, draft = tempfile.mkstemp(suffix=kept, prefix=".matex-", dir=os.path.dirname(path) or ".")
    os.close(handle)
    os.chmod(draft, 0o666 & ~_umask())
    try:
        write(draft)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
