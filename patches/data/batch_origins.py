"""What a batch of arrays came from, by a number: a tf.data pipeline hands on tensors alone."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

_numbers = itertools.count(1)
_known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def remember(origin: Any) -> int:
    """A number for what batches come from, for as long as someone holds it: 1 or more."""
    number = next(_numbers)
    _known[number] = origin
    return number


def find(number: int) -> Any:
    """What has this number; None where nothing has it any more, and for 0."""
    return _known.get(number)
