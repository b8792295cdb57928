"""Train an unmodified TensorFlow or Keras script on many MPI ranks."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matex_tf.core.world import init, local_rank, rank, size
    from matex_tf.patches.across_rows.all_rows import all_rows
    from matex_tf.patches.candidates.blueprint import Blueprint
    from matex_tf.patches.loops.gradient_updates import average
    from matex_tf.readers import DataSet

__version__ = "0.1.0"
__all__ = ["Blueprint", "DataSet", "all_rows", "average", "init", "local_rank", "rank", "size"]

#: Where the names come from: numpy is imported when it is needed, not before the threads are set.
_FROM = {
    "Blueprint": "matex_tf.patches.candidates.blueprint",
    "DataSet": "matex_tf.readers",
    "all_rows": "matex_tf.patches.across_rows.all_rows",
    "average": "matex_tf.patches.loops.gradient_updates",
}

#: What the script has asked for that tells it which rank it is.
asked: set[str] = set()


if not TYPE_CHECKING:  # or every name would be taken for one of these, mistyped ones as well

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        asked.add(name)
        return getattr(importlib.import_module(_FROM.get(name, "matex_tf.core.world")), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
