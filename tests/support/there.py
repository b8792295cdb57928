"""Features in tests of the core: without one (scripts/without) its cases are skipped, and lists are shorter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from matex_tf import features
from matex_tf.patches.common import keras_lines


def needs(feature: str) -> pytest.MarkDecorator:
    """The mark of a test, or of a case of one, that needs a feature."""
    return pytest.mark.skipif(feature not in features.found(), reason=f"the feature {feature} is not there")


def needs_keras_2() -> pytest.MarkDecorator:
    """The mark of a test, or of a case of one, that needs Keras 2, and the feature that serves it."""
    there = keras_lines.has_keras_2() and "keras2" in features.found()
    return pytest.mark.skipif(not there, reason="needs tf_keras, which scripts/setup installs, and the feature keras2")


def case(feature: str, *values: Any) -> Any:
    """A case that needs a feature, of a parametrized test."""
    return pytest.param(*values, marks=needs(feature))


def of_those(names: Iterable[str]) -> set[str]:
    """Names of modules, and of what is in them, without those of features that are not there."""
    return {one for one in names if not one.startswith("features.") or one.split(".")[1] in features.found()}
