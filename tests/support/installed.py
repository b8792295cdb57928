"""The Keras that is installed, without an import of it; that of a nightly build where both are."""

from __future__ import annotations

import importlib.util

from matex_tf.facts.fact import numbers
from matex_tf.facts.sources import Sources


def _keras() -> tuple[int, ...]:
    found = importlib.util.find_spec("keras")
    places = found.submodule_search_locations if found is not None else None
    if not places:
        return (0, 0)
    sources = Sources(places[0])
    return numbers(sources.version("keras" if "keras" in sources.packages else "tf_keras"))


#: The first two numbers of its version, such as (3, 16).
KERAS = _keras()
