"""`np.save` and its kin put a file in its place whole: ranks that write the same file never show half of one.

Every rank of a script comes past such a line; they may do so at different times, or not at all (a cache that is
there already), so the ranks do not wait for one another here.

Relies on: `numpy.save`, `savez`, `savez_compressed`, `savetxt`, public.
"""

from __future__ import annotations

import os
import tempfile
from types import ModuleType
from typing import Any

from matex_tf.patches import names

_ENDINGS = {"save": ".npy", "savez": ".npz", "savez_compressed": ".npz", "savetxt": ""}


def apply(module: ModuleType) -> None:
    """Patch numpy."""
    for name, ending in _ENDINGS.items():
        names.wrap(module, name, _whole(ending))


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
        kept = "".join(part for part in (".gz", ".bz2", ".xz") if path.endswith(part)) or ending
        handle, draft = tempfile.mkstemp(suffix=kept, prefix=".matex-", dir=os.path.dirname(path) or ".")
        os.close(handle)
        os.chmod(draft, 0o666 & ~_umask())
        try:
            result = wrapped(*args, **{**kwargs, key: draft}) if key else wrapped(draft, *args[1:], **kwargs)
            os.replace(draft, path)
        except BaseException:
            os.unlink(draft)
            raise
        return result

    return wrapper


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
