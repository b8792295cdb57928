"""The setting of ranks that are forked by a process that has imported TensorFlow."""

from __future__ import annotations

import dataclasses

from matex_tf.settings import option


@dataclasses.dataclass(frozen=True)
class WarmOptions:
    """What a user has asked for."""

    warm_imports: str = option(
        "auto",
        "Whether TensorFlow and Keras are imported once on each node, by a process that then forks the ranks of the "
        "node. Start-up takes about as long as that of one rank, and ranks share the memory of what is imported. "
        "`on`: on every node of several ranks; a rank that cannot be forked imports for itself, and a line says why. "
        "`auto`: where four ranks or more share a core, of scripts that import TensorFlow or Keras themselves. `off`: "
        "each rank imports for itself.",
        choices=("auto", "on", "off"),
    )
