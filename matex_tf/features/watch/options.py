"""The setting of jobs that Prometheus asks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from matex_tf.errors import SettingError
from matex_tf.settings import option

if TYPE_CHECKING:
    from matex_tf.settings import Settings


@dataclasses.dataclass(frozen=True)
class WatchOptions:
    """What a user has asked for."""

    metrics: str = option(
        "",
        "A port, or an address and a port, at which the first rank serves what ranks report in the format of "
        "Prometheus. Without an address it is open to its own host alone. Empty for none.",
        of_job=True,
        common=True,
    )

    @property
    def without_effect_alone(self) -> str:
        """See `job.suggestions.without_effect_alone`."""
        return f"--metrics {self.metrics}" * bool(self.metrics)

    def check(self, settings: Settings, ranks: int) -> None:
        """Refuse to serve reports that there are not.

        Args:
            settings: all of the run.
            ranks: how many train; it does not matter here.

        Raises:
            SettingError: there are none.
        """
        if self.metrics and not settings.watch:
            raise SettingError("--metrics shows what ranks report, and with --watch off they do not: leave out one.")
