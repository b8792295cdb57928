"""The ranks as processes of JAX: one device of each, and arrays that lie on all of them.

Relies on (JAX 0.10), public: `jax.distributed.initialize`, `jax.local_devices`, `jax.sharding`,
`jax.make_array_from_single_device_arrays`, `jax.make_array_from_process_local_data`, and the setting
`jax_cpu_collectives_implementation`; private: `xla_bridge.backends_are_initialized`, done without if it is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from matex_tf import settings
from matex_tf.core import ports, world
from matex_tf.errors import MatexError, SettingError
from matex_tf.patches.common import log_once, run_state, sharing_report

#: Settings that must be left as they are: they change steps or exchanges, and JAX has its own. Of `faults` see below.
_LEFT_OUT = (
    *("batch", "data", "rows", "batch_norm", "loss", "reproducible", "shard", "strategy", "transport"),
    *("codec", "steps"),
)
_SECONDS = 120  # for all ranks to have come to their import of JAX


class Team:
    """The ranks as JAX sees them.

    Attributes:
        joined: whether JAX knows of the other ranks.
        device: this rank's.
        rows: how an array lies whose rows the ranks share.
        whole: how one lies that each rank has whole.
    """

    def __init__(self) -> None:
        self.joined = False
        self.device: Any = None  # until ranks have met
        self.rows: Any = None
        self.whole: Any = None

    def meet(self) -> None:
        """Learn which devices there are, once; JAX must not be asked before the script has chosen its settings."""
        if self.device is not None:
            return
        import jax

        ranks = world.current()
        firsts = [jax.local_devices(process_index=rank)[0] for rank in range(ranks.size)]
        mesh = jax.sharding.Mesh(np.array(firsts), ("rows",))
        self.device = firsts[ranks.rank]
        self.rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
        self.whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        with _silent():
            jax.block_until_ready(jax.jit(lambda ones: ones.sum(), out_shardings=self.whole)(self._ones()))

    def _ones(self) -> Any:
        import jax

        return jax.make_array_from_process_local_data(self.rows, np.ones(1, np.float32), (world.current().size,))

    def of_all(self, own: Any) -> Any:
        """An array that is the same on every rank, as one array of all ranks; nothing is copied or sent."""
        import jax

        if isinstance(own, jax.Array) and own.sharding == self.whole:
            return own
        own = jax.device_put(own, self.device)
        return jax.make_array_from_single_device_arrays(own.shape, self.whole, [own])

    def own(self, array: Any) -> Any:
        """This rank's array of one that every rank has whole; anything else as it is."""
        import jax

        if isinstance(array, jax.Array) and array.sharding == self.whole:
            return array.addressable_data(0)
        return array

    def my_rows(self, array: Any) -> Any:
        """A batch that every rank has, as an array whose rows the ranks share; it ends with rows of zeros where their
        number does not divide evenly."""
        import jax

        ranks = world.current()
        each = -(-array.shape[0] // ranks.size)
        mine = np.asarray(array[ranks.rank * each : (ranks.rank + 1) * each])
        if (missing := each - len(mine)) > 0:
            mine = np.concatenate([mine, np.zeros((missing, *mine.shape[1:]), mine.dtype)])
        return jax.make_array_from_process_local_data(self.rows, mine, (each * ranks.size, *mine.shape[1:]))


def current() -> Team:
    """That of the job."""
    return run_state.current().part(Team)


def join() -> bool:
    """Let JAX know of the other ranks, before anything is computed with it. All ranks come here.

    Returns:
        Whether they are known.

    Raises:
        SettingError: the job has settings that steps of JAX do not follow.
    """
    import jax

    team = current()
    if team.joined:
        return True
    refuse()
    if getattr(jax.config, "jax_platforms", None) in (None, "cpu"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    ranks = world.current()
    if _is_late():
        sharing_report.trained("jax_late")
        return False
    address = _address()
    try:
        jax.distributed.initialize(
            address, ranks.size, ranks.rank, initialization_timeout=_SECONDS, coordinator_bind_address=address
        )
    except RuntimeError as error:
        raise MatexError(f"JAX could not connect the ranks at {address}: {error}") from error
    team.joined = True
    if settings.current().faults == "restart":
        log_once.log(
            "--faults restart starts a training of Keras on JAX from its beginning; the callback BackupAndRestore goes "
            "on with the epoch (docs/jax.md)"
        )
    return True


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Gloo tells standard output, which is the script's, how many ranks it has connected."""
    sys.stdout.flush()
    kept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nothing)


def _is_late() -> bool:
    """Whether any rank has computed with JAX already, which then knows of this process alone; or the script has started
    its ranks itself."""
    import jax

    bridge = importlib.import_module("jax._src.xla_bridge")  # private: what jax.distributed.initialize asks itself
    asks = (getattr(bridge, "backends_are_initialized", None), getattr(jax.distributed, "is_initialized", None))
    late = any(ask() for ask in asks if ask is not None)
    return any(world.current().allgather(late, "import JAX"))


def _address() -> str:
    """Where rank 0 shall coordinate the ranks: a free port of an address that all of them reach."""
    ranks = world.current()
    everyone = ranks.allgather(ports.addresses(), "find an address for JAX's coordinator")
    host = "127.0.0.1"
    if len(ranks.nodes) > 1:
        theirs = {address for rank in range(ranks.size) if rank not in ranks.nodes[0] for address in everyone[rank]}
        own = [address for address in everyone[0] if address not in theirs]
        if not own:
            raise MatexError(
                f"{ranks.hosts[0]} has no address of its own that other nodes lack, and JAX's coordinator needs one."
            )
        host = own[0]
    port = 0
    if ranks.rank == 0:
        with contextlib.closing(socket.socket()) as free:
            free.bind((host, 0))
            port = free.getsockname()[1]
    return f"{host}:{ranks.broadcast(port, 'find a port for JAX')}"


def refuse() -> None:
    """Raises: SettingError: the job has a setting that JAX's steps do not follow."""
    given, plain = settings.current().values(), settings.Settings().values()
    if given["faults"] == "shrink":
        raise SettingError(
            "--faults shrink is for Keras on TensorFlow, and Keras computes with JAX here, whose ranks cannot go on "
            "without one: take --faults restart (docs/jax.md)."
        )
    changing = [one for one in settings.current().declared if getattr(one, "changes_one_rank", False)]
    for name in (*_LEFT_OUT, *(field.name for one in changing for field in dataclasses.fields(one))):
        if given[name] != plain[name]:
            raise SettingError(
                f"{settings.flag_name(name)} is for Keras on TensorFlow, and Keras computes with JAX here: leave it "
                "out (docs/jax.md)."
            )
