"""What some people add to matex_tf. A feature is a folder with all that is its own, and the core works without it.

It may import nothing. A feature may import any room of the core, and no other feature.

Start reading in registry.py.
"""

from matex_tf.features.registry import Command, Feature, found

__all__ = ["Command", "Feature", "found"]
