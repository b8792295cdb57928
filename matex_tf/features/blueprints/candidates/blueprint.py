"""`matex_tf.Blueprint`: what a script's network may be, and what it is in this run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from matex_tf.errors import MatexError
from matex_tf.features.blueprints import source
from matex_tf.features.blueprints.candidates import candidate
from matex_tf.features.blueprints.candidates.hyperparameters import HyperParameters


class Blueprint:
    """Ranges for the values of a network, from which `matex-tf grow` draws candidates.

    In a script that runs by itself or under `matex-tf run` the values are the defaults: the largest whole number, the
    middle of other numbers, the first choice. So the script is one whole training either way.

    Args:
        ranges: a file (YAML or JSON, see docs/blueprints.md); the same as a dict, such as {"units": "32..512"}; the
            config of a Keras model with ranges in it; or a function that takes `hp` and returns a compiled model.

    Raises:
        SettingError: the file cannot be read, or something in it cannot be a range.

    Example:

        blueprint = matex_tf.Blueprint({"units": "32..512", "activation": ["relu", "gelu"]})
        model = make_model(**blueprint.values)
    """

    def __init__(self, ranges: str | Mapping[str, Any] | Callable[[Any], Any]):
        self.hp = HyperParameters()
        self._build = ranges if callable(ranges) else None
        self._blueprint: Mapping[str, Any] = {}
        if not callable(ranges):
            self._blueprint = source.read(ranges) if isinstance(ranges, str) else dict(ranges)
        self.ranges = source.ranges(self._blueprint) if self._blueprint else {}

    @property
    def values(self) -> dict[str, Any]:
        """The values of the network in this run, by name; of a function, after its first call."""
        if self._build is not None:
            return dict(self.hp.values)
        now = candidate.current()
        candidate.ask(*self.ranges)
        return {
            name: one.default if now is None else now.value(name, one) for name, one in self.ranges.items()
        }  # fmt: skip

    def model(self, make: Callable[..., Any] | None = None) -> Any:
        """A model with these values.

        Args:
            make: a function that takes the values by their names; not needed for a config or a function with `hp`.

        Returns:
            What the function returns; of a config, a Keras model that is not compiled.

        Raises:
            MatexError: there are ranges by name, and no function that takes them.
        """
        if self._build is not None:
            return self._build(self.hp)
        if make is not None:
            return make(**self.values)
        if not source.is_config(self._blueprint):
            raise MatexError("this blueprint has only ranges: give model() the function that makes the model.")
        from matex_tf.features.blueprints.candidates import configs

        return configs.model(source.resolve(self._blueprint, self.values))
