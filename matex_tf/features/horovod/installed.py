"""A Horovod that is installed has its own way with data: the patches are put aside once a script imports it.

Relies on (Horovod 0.28): that `horovod.tensorflow` is what scripts import; public.
"""

from __future__ import annotations

import sys
import traceback
from types import ModuleType

from matex_tf.features.horovod import alias
from matex_tf.patches.common import sharing_report
from matex_tf.state import notes

NOTE = (
    "the script imports the Horovod that is installed: the batch is the rank's own, and matex_tf splits and "
    "averages nothing (docs/from-horovod.md)"
)
#: Who imports Horovod to add up gradients itself, and whose frames every import passes through.
_TRANSPORT = "matex_tf.exchange.horovod_sum"
_ON_THE_WAY = ("wrapt", "matex_tf.", "importlib.", "horovod.")


def install(module: ModuleType) -> None:
    """Put the patches aside if it is the script that imports horovod.tensorflow."""
    if notes.has(module, alias.Made):
        return
    frames = [frame for frame, _ in traceback.walk_stack(sys._getframe())]
    names = [f"{frame.f_globals.get('__name__', '')}." for frame in frames]
    if f"{_TRANSPORT}." in names:
        return
    # The first frame is that of who imports it: the script, or a package that looks whether it is there.
    others = (frame for frame, name in zip(frames, names, strict=True) if not name.startswith(_ON_THE_WAY))
    importer = next((one for one in others if "importlib" not in one.f_code.co_filename), None)
    if importer is not None and sharing_report.of_the_script(importer.f_code.co_filename):
        alias.put_patches_aside(NOTE)
