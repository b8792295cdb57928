"""Which ranks train, and which serve alone: `--servers`. The last ranks of a job serve; the others are its world."""

from __future__ import annotations

import os

from matex_tf.core.world import World
from matex_tf.features.groups.center import wire
from matex_tf.features.groups.center.client import Servers
from matex_tf.features.groups.center.member import TOKEN_BYTES, Center, serve
from matex_tf.settings import in_use


def ranks_that_train(everyone: World, training: int, network: str) -> World | None:
    """The world of the ranks that train. Collective over all ranks.

    Args:
        training: how many train.
        network: see `--center-network`.

    Returns:
        None on a rank that serves, once all that train have ended.

    Raises:
        SettingError: a host without an address for one.
    """
    token = everyone.broadcast(os.urandom(TOKEN_BYTES), "draw a token for the center")
    service = serve(everyone, token, network, training)
    where = everyone.allgather(service and service.address, "tell where the center is")
    world = everyone.subset(range(training))
    servers = Servers([address for address in where if address], token)
    # A rank that trains is connected to each server from here to its end, so that servers know when to end.
    lines = [] if world is None else [wire.connect(address, token) for address in servers.addresses]
    everyone.barrier("begin to train")
    if world is not None:
        world.center = Center(servers, None, lines)
        return world
    assert service is not None
    service.wait(training)
    service.close()
    if in_use.current().faults == "shrink":
        os._exit(0)  # MPI_Finalize may wait for ranks that have died
    return None
