"""The settings of groups, of the servers of a center, and of a group that joins a job."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from matex_tf.errors import SettingError
from matex_tf.settings import option
from matex_tf.settings.declaration import flag_name
from matex_tf.settings.strategy_registry import STRATEGIES

if TYPE_CHECKING:
    from matex_tf.core.world import World
    from matex_tf.settings import Settings
    from matex_tf.watching.registry import Entry


@dataclasses.dataclass(frozen=True)
class GroupOptions:
    """`--groups` and the rest."""

    groups: str = option(
        "",
        "Which ranks train as one with `--strategy elastic`, `server` or `local`: a number of groups, `host`, or lists "
        "of ranks such as `0-3/4-7`. Inside a group all is as with sync; groups meet as the strategy has it. Empty: "
        "each rank is a group.",
        group="strategy",
    )
    servers: int = option(
        0,
        "How many ranks, the last ones, train nothing and keep the center of `--strategy elastic` and `server`. With 0 "
        "each rank that trains keeps a piece of it.",
        kind="count",
        group="strategy",
    )
    center_network: str = option(
        "",
        "The network on which servers of a center listen, such as `10.0.0.0/8`, a private one: what travels is not "
        "encrypted. Empty: loopback if all ranks are on one host, otherwise the first private address that each host "
        "has for itself.",
        group="strategy",
    )
    join: str = option(
        "",
        "The job file of a running job of `--strategy elastic` or `server`: the ranks train in it as one more group. "
        "`matex-tf join` sets it. Empty for a job by itself.",
        kind="text",
        group="strategy",
    )

    @property
    def is_guest(self) -> bool:
        """See `Settings.is_guest`."""
        return bool(self.join)

    @property
    def changes_one_rank(self) -> bool:
        """See `Settings.changes_one_rank`."""
        return bool(self.join)

    def check(self, settings: Settings, ranks: int) -> None:
        """Refuse groups and servers where the strategy has none.

        Args:
            ranks: how many train; 0 if nobody knows yet.

        Raises:
            SettingError: what does not go together, and what to take instead.
        """
        strategy = STRATEGIES[settings.strategy]
        in_groups, has_center = (getattr(strategy, name, False) for name in ("in_groups", "has_center"))
        if self.groups:  # commands read settings, and need no more than that
            from matex_tf.features.groups import membership

            membership.check(self.groups, ranks)
        if self.groups and not in_groups:
            raise SettingError(
                "--groups is for strategies whose ranks train independently, and "
                f"--strategy {settings.strategy} has no groups: take --strategy elastic, server or local, or leave out "
                "--groups."
            )
        if self.servers and not has_center:
            raise SettingError(
                f"--servers is for strategies with a center, and --strategy {settings.strategy} has none: take "
                "--strategy elastic or server, or leave out --servers."
            )
        if self.join and not has_center:
            raise SettingError(
                f"--join is for strategies with a center, and --strategy {settings.strategy} has none: take that of "
                "the job."
            )
        if self.join and (self.groups != "1" or self.servers or settings.faults != "abort"):
            raise SettingError(
                "--join lets ranks train in another job as one group of it: take --groups 1, --servers 0 and --faults "
                "abort, as matex-tf join does."
            )
        if (has_center or self.groups) and settings.batch == "per-rank":
            raise SettingError(
                f"--batch per-rank and --strategy {settings.strategy}{' --groups' * bool(self.groups)} do not go "
                "together: groups split each batch of the script. Take --batch global and a larger batch size."
            )
        self._check_network()

    def _check_network(self) -> None:
        if not self.center_network:
            return
        try:
            network = ipaddress.ip_network(self.center_network)
        except ValueError as error:
            raise SettingError(f"--center-network: {error}; it must look like 10.0.0.0/8.") from None
        if not network.is_private:
            raise SettingError(
                f"--center-network {self.center_network} is not a private network, and what travels is not "
                "encrypted: name a private one, such as 10.0.0.0/8, if need be that of a VPN."
            )

    def training_ranks(self, ranks: int) -> int:
        """How many of so many ranks train; the others are servers of the center.

        Raises:
            SettingError: none.
        """
        if self.servers >= ranks:
            raise SettingError(f"--servers {self.servers} leaves none of {ranks} ranks to train: take fewer.")
        return ranks - self.servers

    def world_that_trains(self, world: World) -> World | None:
        """The ranks that train; None on a server, at the end. Collective over all ranks."""
        if not self.servers or world.is_single:
            return world
        from matex_tf.features.groups.center import serving

        return serving.ranks_that_train(world, self.training_ranks(world.size), self.center_network)

    def begin(self, world: World) -> None:
        """Before the script: reach the job that these ranks join, if there is one. Collective."""
        if self.join:
            from matex_tf.features.groups.center import joining

            joining.begin(world, self.join)


def to_join(entry: Entry, path: Path, given: Mapping[str, str]) -> dict[str, str] | None:
    """The settings with which ranks join a running job as a group of it, as texts by name; None where they cannot.

    Args:
        entry: the job.
        path: its job file.
        given: settings that are asked for.

    Raises:
        SettingError: one of them cannot be chosen.
    """
    if entry.center is None:
        return None
    from matex_tf.features.groups.center import terms

    job = {name: text for name, text in entry.run["settings"].items() if name not in terms.OWN}
    own = {"seed": str(entry.run["seed"]), "groups": "1", "servers": "0", "faults": "abort", "join": str(path)}
    for name in given:
        if name in own:
            raise SettingError(f"matex-tf join sets {flag_name(name)} itself: leave it out.")
    return {**job, **given, **own}
