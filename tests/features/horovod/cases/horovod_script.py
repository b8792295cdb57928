"""What a case needs to be a Horovod script among cases that are not: the names, and no patches meanwhile."""

from __future__ import annotations

import functools
import sys

from matex_tf.features.horovod import alias
from matex_tf.patches.common import wrapping

# As if it were done: the import must not put the patches of other cases aside, nor change their seeds.
wrapping.put_aside(True)
import matex_tf.features.horovod.names  # noqa: E402, F401
import matex_tf.features.horovod.names.tensorflow as hvd  # noqa: E402

wrapping.put_aside(False)
sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, alias.Finder)]


def script(case):
    """A case between `hvd.init` and `hvd.shutdown`, without patches."""

    @functools.wraps(case)
    def run(**kwargs):
        wrapping.put_aside(True)
        try:
            hvd.init()
            return case(**kwargs)
        finally:
            hvd.shutdown()
            wrapping.put_aside(False)

    return run
