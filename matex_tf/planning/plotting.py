"""What draws pictures, where it is installed."""

from __future__ import annotations

from typing import Any

from matex_tf.errors import MissingPackage


def pyplot() -> Any:
    """`matplotlib.pyplot`, which draws to files and needs no screen.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise MissingPackage("a picture needs matplotlib: pip install 'matex_tf[plots]'.") from None
    return pyplot
