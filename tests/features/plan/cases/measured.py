"""What `matex-tf plan` measures."""

from __future__ import annotations

import dataclasses

from matex_tf.features.plan import probe
from tests.support.cases.exchange import on_hosts


def machine(hosts=""):
    """The machine of this world, as if its ranks were on hosts of these names."""
    world = on_hosts(hosts)
    found = probe.measure(world, rounds=3)
    world.free()
    return dataclasses.asdict(found)
