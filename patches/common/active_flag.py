"""Whether a piece of work is under way: patches ask it of the code that called them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class ActiveFlag:
    """True while a block of `with this():` runs, in any thread; blocks may be nested."""

    def __init__(self) -> None:
        self._depth = 0

    def __bool__(self) -> bool:
        return self._depth > 0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Be inside."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1


#: While this rank writes by itself, whatever the others do.
alone = ActiveFlag()
