"""Names of Horovod that are not here: an error that says what to use instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import NoReturn

#: What to use instead of a name.
INSTEAD = {
    "mlsl_built": "it went away in Horovod too; ccl_built is there",
    "run": "it is in horovod.tensorflow.elastic; to start ranks from Python, start the script with matex-tf run",
    "check_extension": "there is no compiled extension; nothing needs to be checked",
    "MPI_LIB": "there is no compiled library; the collectives are Python functions of this module",
    "compute_service": "use tf.data.experimental.service itself",
    "data": "use tf.data.experimental.service itself",
    "strategy": "use DistributedOptimizer or DistributedGradientTape",
    "send_to_data_service": "use tf.data.experimental.service itself",
    "LocalGradientAggregationHelper": "give backward_passes_per_step to DistributedOptimizer",
    "vars_to_refs": "it is a helper inside Horovod",
    "refs_to_vars": "it is a helper inside Horovod",
}


def raise_unsupported(module: str, name: str, there: Iterable[str], instead: Mapping[str, str] = INSTEAD) -> NoReturn:
    """Raise AttributeError for a name that a module does not have.

    Args:
        module: Horovod's name of the module.
        name: what was asked for.
        there: the names that it has.
        instead: what to use instead, by name.
    """
    text = f"{module} of matex_tf has no {name!r}"
    if name in instead:
        text += f": {instead[name]}"
    else:
        close = difflib.get_close_matches(name, [one for one in there if not one.startswith("_")], 3)
        text += f"; did you mean {' or '.join(close)}?" if close else "; docs/horovod-reference.md lists what it has"
    raise AttributeError(text, name=name)
