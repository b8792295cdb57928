"""The ranks as processes of JAX: one device of each, and arrays that lie on all of them.

Relies on (JAX 0.10), public: `jax.distributed.initialize`, `jax.local_devices`, `jax.sharding`, and the settings
`jax_cpu_collectives_implementation` and `jax_enable_preemption_service`; private: `backends_are_initialized` of
xla_bridge, done without if it is gone, and `make_gloo_tcp_collectives` of its `_jax`, which has an argument `hostname`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import socket
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from matex_tf import settings
from matex_tf.core import ports, world
from matex_tf.errors import MatexError, SettingError
from matex_tf.features.jax.place import Place, is_divided, is_of_all
from matex_tf.patches.common import log_once, sharing_report, wrapping
from matex_tf.patches.imports import other_frameworks
from matex_tf.state import run_state

#: Settings that must be left as they are: they change steps or exchanges, and JAX has its own. Of `faults` see below.
_LEFT_OUT = (
    *("batch", "data", "rows", "batch_norm", "loss", "reproducible", "shard", "strategy", "transport"),
    "codec",
)
_LATE = (
    "Keras on JAX",
    "set KERAS_BACKEND=jax before JAX is imported, and leave jax.distributed.initialize to matex_tf: the script has "
    "used JAX before it imported Keras (docs/jax.md)",
)
_SECONDS = 120  # for all ranks to have come to their import of JAX


class Team:
    """The ranks as JAX sees them.

    Attributes:
        joined: whether JAX knows of the other ranks.
        device: this rank's.
        place: one device of each rank.
    """

    def __init__(self) -> None:
        self.joined = False
        self.device: Any = None  # until ranks have met
        self.place: Any = None

    def meet(self) -> None:
        """Learn which devices there are, once; JAX must not be asked before the script has chosen its settings."""
        if self.device is not None:
            return
        import jax

        ranks = world.current()
        firsts = [jax.local_devices(process_index=rank)[0] for rank in range(ranks.size)]
        self.device = firsts[ranks.rank]
        self.place = Place(jax.sharding.Mesh(np.array(firsts), ("rows",)), "rows")
        one = self.place.my_rows(np.ones(ranks.size, np.float32))
        with _silent():
            jax.block_until_ready(jax.jit(lambda ones: ones.sum(), out_shardings=self.place.whole)(one))

    def own(self, arrays: Any) -> Any:
        """This rank's arrays, each whole, of such as lie on all ranks. All ranks come here if one is in parts."""
        import jax

        leaves, structure = jax.tree.flatten(arrays)
        if divided := [place for place, leaf in enumerate(leaves) if is_divided(leaf)]:
            world.current().barrier("gather the weights of a model", [f"{leaves[one].shape}" for one in divided])
            whole = [Place(leaves[one].sharding.mesh).whole for one in divided]
            gathered = jax.jit(_as_it_is, out_shardings=whole)([leaves[one] for one in divided])
            for one, array in zip(divided, gathered, strict=True):
                leaves[one] = array
        return jax.tree.unflatten(structure, [self._mine(leaf) for leaf in leaves])

    def _mine(self, array: Any) -> Any:
        if not is_of_all(array):
            return array
        return next(part.data for part in array.addressable_shards if part.device == self.device)


def _as_it_is(arrays: Any) -> Any:
    return arrays


def current() -> Team:
    """That of the job."""
    return run_state.current().part(Team)


def install(module: ModuleType) -> None:
    """At the import of jax: let it know of the ranks, if Keras is to compute with it, as it may be used at once.

    A script that chooses the backend after this import comes to `trainer`, when it imports Keras.
    """
    if other_frameworks.backend_asked_for() == "jax" and not wrapping.is_aside() and not wrapping.alone():
        join()


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
    if hasattr(jax.config, "jax_enable_preemption_service"):  # it would take SIGTERM, and so keep a rank from its end
        jax.config.update("jax_enable_preemption_service", False)
    ranks = world.current()
    if _is_late():
        sharing_report.trained("jax_late", _LATE)
        return False
    own = _own_address()
    _listen_at(own)
    address = _coordinator(own)
    try:
        with _past_proxies():
            jax.distributed.initialize(
                address, ranks.size, ranks.rank, initialization_timeout=_SECONDS, coordinator_bind_address=address
            )
    except RuntimeError as error:
        raise MatexError(f"JAX could not connect the ranks at {address}: {error}") from error
    team.joined = True
    if settings.current().faults == "restart":
        log_once.log(
            "--faults restart starts a training of Keras on JAX from its beginning; the callback BackupAndRestore "
            "continues with the epoch (docs/jax.md)"
        )
    return True


@contextlib.contextmanager
def _past_proxies() -> Iterator[None]:
    """JAX asks a proxy of the environment to connect the ranks, which cannot; and it warns of each such variable."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if "proxy" in name.lower()}
    try:
        yield
    finally:
        os.environ.update(kept)


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


def _own_address() -> str:
    """An address of this node at which the ranks of others reach it; on one node that of the node itself alone."""
    ranks = world.current()
    if len(ranks.nodes) == 1:
        return "127.0.0.1"
    everyone = ranks.allgather(ports.addresses(), "find addresses for JAX")
    here = next(node for node in ranks.nodes if ranks.rank in node)
    theirs = {address for rank in range(ranks.size) if rank not in here for address in everyone[rank]}
    own = [address for address in everyone[ranks.rank] if address not in theirs]
    if not own:
        raise MatexError(f"{ranks.hosts[ranks.rank]} has no address that other nodes lack, and JAX needs one.")
    return own[0]


def _coordinator(own: str) -> str:
    """Where rank 0 shall coordinate the ranks: a free port of its address."""
    ranks, place = world.current(), ""
    if ranks.rank == 0:
        with contextlib.closing(socket.socket()) as free:
            free.bind((own, 0))
            place = f"{own}:{free.getsockname()[1]}"
    return str(ranks.broadcast(place, "find a port for JAX"))


def _listen_at(own: str) -> None:
    """Let Gloo connect ranks at this address, and not at that of the node's name, which others may not reach."""
    library = importlib.import_module("jax._src.xla_bridge")._jax
    make = library.make_gloo_tcp_collectives
    library.make_gloo_tcp_collectives = functools.partial(make, hostname=own)


def refuse() -> None:
    """Raises: SettingError: the job has a setting that JAX's steps do not follow."""
    given, plain = settings.current().values(), settings.Settings().values()
    if given["faults"] == "shrink":
        raise SettingError(
            "--faults shrink is for Keras on TensorFlow, and Keras computes with JAX here, whose ranks cannot continue "
            "without one: take --faults restart (docs/jax.md)."
        )
    changing = [one for one in settings.current().declared if getattr(one, "changes_one_rank", False)]
    for name in (*_LEFT_OUT, *(field.name for one in changing for field in dataclasses.fields(one))):
        if given[name] != plain[name]:
            raise SettingError(
                f"{settings.flag_name(name)} is for Keras on TensorFlow, and Keras computes with JAX here: leave it "
                "out (docs/jax.md)."
            )
