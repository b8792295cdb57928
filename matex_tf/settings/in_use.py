"""The settings of this process."""

from __future__ import annotations

from matex_tf.settings.run_settings import Settings

_current: Settings | None = None  # one for the whole process, as the environment is that they come from


def current() -> Settings:
    """The settings of this process, read from the environment where `use` was not called."""
    global _current
    if _current is None:
        _current = Settings.read()
    return _current


def use(settings: Settings) -> Settings:
    """Make `settings` those of this process; returns those before."""
    global _current
    before = current() if _current is not None else settings
    _current = settings
    return before
