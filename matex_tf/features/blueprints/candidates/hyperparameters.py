"""The `hp` that a function gets which makes a model: as KerasTuner's, each call names a value and its range."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from matex_tf.errors import SettingError
from matex_tf.features.blueprints.candidates import candidate
from matex_tf.features.blueprints.ranges import Range, numbers


class HyperParameters:
    """What `build(hp)` asks for its values.

    Under `matex-tf grow` each call returns the value of the candidate that is trained. Elsewhere it returns `default`
    or, where that is not given, the largest number, the middle of real numbers, the first choice.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def Int(
        self,
        name: str,
        min_value: int,
        max_value: int,
        step: int | None = None,
        sampling: str | None = None,
        default: int | None = None,
        **_: Any,
    ) -> int:
        """A whole number from `min_value` to `max_value`, both included.

        Args:
            name: of the value.
            min_value, max_value: the ends.
            step: how far apart the numbers are that can be drawn, from `min_value` on; None for all. With
                sampling="log" too, where KerasTuner takes it for a factor.
            sampling: "log" to draw by the logarithm; "linear", or "reverse_log", which is taken for it; None: by the
                logarithm where the ends are eight times or more apart.
            default: where nothing is drawn; None: `max_value`.

        Raises:
            SettingError: the range is empty, or begins at 0 or below with sampling="log", or `sampling` is another
                word.
        """
        one = numbers(name, min_value, max_value, step or 0, True, _scale(name, sampling))
        return int(self._value(name, one, default))

    def Float(
        self,
        name: str,
        min_value: float,
        max_value: float,
        step: float | None = None,
        sampling: str | None = None,
        default: float | None = None,
        **_: Any,
    ) -> float:
        """A number from `min_value` to `max_value`.

        Args:
            name: of the value.
            min_value, max_value: the ends, both included.
            step, sampling: see `Int`.
            default: where nothing is drawn; None: the middle, by `sampling`.

        Raises:
            SettingError: the range is empty, or begins at 0 or below with sampling="log", or `sampling` is another
                word.
        """
        one = numbers(name, min_value, max_value, step or 0, False, _scale(name, sampling))
        return float(self._value(name, one, default))

    def Choice(
        self, name: str, values: Sequence[Any], ordered: bool | None = None, default: Any = None, **_: Any
    ) -> Any:
        """One of `values`.

        Args:
            name: of the value.
            values: one or more, of any kind.
            ordered: taken and ignored; KerasTuner has it for tuners that look at what is near.
            default: where nothing is drawn; None: the first.

        Raises:
            SettingError: there are none.
        """
        if not values:
            raise SettingError(f"hp.Choice({name!r}) has no values.")
        return self._value(name, Range(choices=tuple(values)), default)

    def Boolean(self, name: str, default: bool = False, **_: Any) -> bool:
        """True or False.

        Args:
            name: of the value.
            default: where nothing is drawn.
        """
        return bool(self._value(name, Range(choices=(False, True)), default))

    def Fixed(self, name: str, value: Any, **_: Any) -> Any:
        """This value always.

        Args:
            name: of the value.
            value: of any kind.
        """
        return self._value(name, Range(choices=(value,)), value)

    def get(self, name: str) -> Any:
        """The value that an earlier call has returned for this name.

        Raises:
            KeyError: there was none.
        """
        return self.values[name]

    @contextlib.contextmanager
    def conditional_scope(self, parent_name: str, parent_values: Any) -> Iterator[None]:
        """As KerasTuner's; values inside need no care here, since each is drawn when it is asked for.

        Args:
            parent_name, parent_values: taken and ignored; with KerasTuner the value, and what it must be, for those
                inside to matter.
        """
        yield

    def _value(self, name: str, one: Range, default: Any) -> Any:
        now = candidate.current()
        candidate.ask(name)
        plain = one.default if default is None else default
        self.values[name] = plain if now is None else now.value(name, one)
        return self.values[name]


def _scale(name: str, sampling: str | None) -> str:
    scales = {None: "", "linear": "linear", "log": "log", "reverse_log": "linear"}
    if sampling not in scales:
        raise SettingError(f"{name} has sampling={sampling!r}; it can be linear or log.")
    return scales[sampling]
