"""The errors that matex_tf raises on purpose; each message says what to do."""

from __future__ import annotations

from collections.abc import Sequence


class MatexError(Exception):
    """Base of every error that this package raises on purpose."""


class SettingError(MatexError):
    """A setting has a value that it cannot have."""


class MissingPackage(MatexError):
    """TensorFlow, mpi4py or an MPI library is not there, or not the right one."""


class RanksDisagree(MatexError):
    """Ranks came to the same point with different things in hand.

    Attributes:
        everyone: for each rank, what it was about to do, the details of that, and where it was in its script.
    """

    everyone: Sequence[tuple[str, tuple[str, ...], str]] = ()


class RankLost(MatexError):
    """Another rank has died."""


class DataError(MatexError):
    """A file, or what a script asked of it, is not as it should be; says which file, row or name."""


class NameMoved(MatexError):
    """Keras or TensorFlow no longer has a name that a patch relies on."""


#: What the runtime raised last inside a TensorFlow op. TensorFlow turns an exception of an op into one of its own and
#: keeps only the text; the end of the job is reported from here.
last_raised: BaseException | None = None
