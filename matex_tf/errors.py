"""The errors that matex_tf raises on purpose; each message says what to do."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from typing import Any

from matex_tf.state import run_state


class MatexError(Exception):
    """Base of every error that this package raises on purpose; its message has no control characters."""

    def __init__(self, *args: Any):
        super().__init__(*(harmless(one) if isinstance(one, str) else one for one in args))


class SettingError(MatexError):
    """A setting has a value that it cannot have."""


class MissingPackage(MatexError):
    """TensorFlow, mpi4py or an MPI library is not there, or not the right one."""


class EndsToResume(SystemExit):
    """A checkpoint was asked for and is saved: the job ends, on all ranks, and is to be resumed.

    Args:
        where: what the checkpoint is of, such as "step 3 of epoch 2 of fit 1".
        by: the signal that has asked for it.
    """

    #: The exit code of such a job: "try again later" (EX_TEMPFAIL of sysexits.h). By SIGTERM it is that of the signal.
    CODE = 75

    def __init__(self, where: str, by: signal.Signals = signal.SIGUSR1):
        super().__init__(128 + by if by == signal.SIGTERM else self.CODE)
        self.where, self.by = where, by


class RanksDisagree(MatexError):
    """Ranks came to the same point of the script with other data, shapes or calls.

    Attributes:
        everyone: for each rank, what it was about to do, the details of that, and where it was in its script.
    """

    everyone: Sequence[tuple[str, tuple[str, ...], str]] = ()


class RankLost(MatexError):
    """Another rank has died."""


class CommunicationError(Exception):
    """A message did not come, or could not be sent. What the transport says; another rank may have died."""


class Refused(MatexError):
    """This rank cannot be one of the job's to which it has come, for a reason that it has found out itself."""


class DataError(MatexError):
    """A file, or what a script asked of it, is wrong; the message names the file, row or name.

    Args:
        message: what is wrong. Of a long one the middle is left out: much of a message comes from a file that may be
            damaged or hostile.
    """

    def __init__(self, message: str):
        super().__init__(_cut(harmless(message), MESSAGE_LENGTH))


class NameMoved(MatexError):
    """Keras or TensorFlow no longer has a name that a patch relies on."""


#: Characters of a message about data, and of a value that is quoted in one.
MESSAGE_LENGTH = 1000
QUOTED_LENGTH = 80
_LISTED_LENGTH = 300


def shortened(text: str, most: int = QUOTED_LENGTH) -> str:
    """A text on one line, of at most `most` characters: of a longer `text` its beginning, `…`, some of its end."""
    return _cut(harmless(text, lines=False), most)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end - 1]}…{text[-end:]}"


def quoted(value: Any) -> str:
    """A value as Python writes it, shortened, for a message."""
    if isinstance(value, (str, bytes)) and len(value) > QUOTED_LENGTH:
        return f"{value[: QUOTED_LENGTH - 20]!r}… ({len(value)} characters)"
    try:
        return shortened(repr(value))
    except Exception:  # a value of the script's own, which may do anything
        return f"a {type(value).__name__}"


def listed(names: Iterable[Any], between: str = ", ") -> str:
    """Names for a message, as many as fit, and how many more there are.

    Args:
        names: anything that `str` makes a name of.
        between: what stands between two of them.
    """
    waiting, shown, length = [str(name) for name in names], [], 0
    for name in waiting:
        shown.append(shortened(name))
        length += len(shown[-1])
        if length > _LISTED_LENGTH:
            break
    more = len(waiting) - len(shown)
    return between.join(shown) + (f" and {more} more" if more else "")


def harmless(text: str, lines: bool = True) -> str:
    """A text in which characters that a terminal would obey, or cannot show, stand as Python writes them.

    Names of files, and of what is in them, can have any.

    Args:
        lines: whether ends of lines and tabs stay.
    """
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(c if c.isprintable() or c in kept else repr(c)[1:-1] for c in text)


class _Remembered:
    """Of a run: what was raised last inside a TensorFlow op, which runs in a thread of TensorFlow's own."""

    error: BaseException | None = None


def remember(error: BaseException | None) -> None:
    """Keep what is about to be raised inside a TensorFlow op, or None.

    TensorFlow turns an exception of an op into one of its own and keeps only the text; the end of the job is reported
    from here.
    """
    run_state.part(_Remembered).error = error


def remembered() -> BaseException | None:
    """What was raised last inside a TensorFlow op, as it was raised."""
    return run_state.part(_Remembered).error
