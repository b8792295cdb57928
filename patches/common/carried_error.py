"""An exception of one rank, carried to the others: what a script catches it must catch on every rank."""

from __future__ import annotations

import pickle

from matex_tf.errors import MatexError


def pack(error: Exception, what: str = "") -> bytes:
    """An exception as bytes of pickle that any rank can read.

    Args:
        what: said before its words where its class cannot be restored, and an error of ours has to stand for it.
    """
    try:
        packed = pickle.dumps(error)
        if type(pickle.loads(packed)) is type(error):
            return packed
    except Exception:  # classes may do anything when they are pickled
        pass
    return pickle.dumps(MatexError(f"{what}{type(error).__name__}: {error}"))


def unpack(packed: bytes) -> Exception:
    """The exception, from what `pack` made of it on another rank of this job."""
    error: Exception = pickle.loads(packed)
    return error
