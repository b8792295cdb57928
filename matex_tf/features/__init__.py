"""What some people add to matex_tf. A feature is a folder with all that is its own, and the core works without it.

It may import nothing. A feature may import any room of the core, and no other feature.

Start reading in registry.py.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matex_tf.features.registry import Command, Feature, found

__all__ = ["Command", "Feature", "found"]


if not TYPE_CHECKING:  # `import matex_tf` needs the short names alone

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from matex_tf.features import registry

        return getattr(registry, name)
