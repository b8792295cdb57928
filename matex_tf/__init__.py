"""Train an unmodified TensorFlow or Keras script on many MPI ranks."""

from typing import TYPE_CHECKING, Any

from matex_tf.features import short_names
from matex_tf.state import run_state

if TYPE_CHECKING:
    from matex_tf.core.world import init, local_rank, rank, size
    from matex_tf.patches.across_rows.all_rows import all_rows
    from matex_tf.patches.loops.gradient_updates import average
    from matex_tf.readers import DataSet

__version__ = "0.1.0"
__all__ = ["DataSet", "all_rows", "average", "init", "local_rank", "rank", "size"]

#: Where the names come from: numpy is imported when it is needed, not before the threads are set.
_FROM = {
    "DataSet": "matex_tf.readers",
    "all_rows": "matex_tf.patches.across_rows.all_rows",
    "average": "matex_tf.patches.loops.gradient_updates",
}


if not TYPE_CHECKING:  # or every name would be taken for one of these, mistyped ones as well

    def __getattr__(name: str) -> Any:
        if name in __all__:
            module = _FROM.get(name, "matex_tf.core.world")
        elif name[:1].isupper() and name in (more := _of_features()):  # modules of ours are asked for here too
            module = more[name]
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        run_state.current().asked.add(name)
        return getattr(importlib.import_module(module), name)


def _of_features() -> dict[str, str]:
    """The classes that features add, and the module of each."""
    from matex_tf.features import found

    return {name: module for feature in found().values() for name, module in feature.names.items()}


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, *_of_features()])


short_names.install()
