"""What `matex-tf plan` measures."""

from __future__ import annotations

import dataclasses

from cases.exchange import on_hosts

from matex_tf import links


def machine(hosts=""):
    """The machine of this world, as if its ranks were on hosts of these names."""
    world = on_hosts(hosts)
    found = links.measure(world, rounds=3)
    world.free()
    return dataclasses.asdict(found)
