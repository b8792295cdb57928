"""Errors of Horovod's names."""

from __future__ import annotations

from matex_tf.errors import MatexError


class HorovodInternalError(RuntimeError):
    """A collective could not be carried out. A function under `elastic.run` raises it to go back to its last commit."""


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of the job have changed. Raised by nothing in matex_tf; here for scripts that catch it."""

    def __init__(self, skip_sync: bool = False):
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Never raised here: there is nothing that was built against another version."""


class Mismatch(MatexError):
    """Ranks came to a collective with tensors that do not fit, or to different collectives."""


class BadArgument(MatexError, ValueError):
    """A rank gave a collective an argument that it cannot have; raised on every rank."""
