"""Every setting of matex_tf, declared once: its flag, its environment variable, its help and its line in the docs.

It may import the registry of features, which says where classes lie. Start reading in run_settings.py.
"""

from matex_tf.errors import SettingError
from matex_tf.settings.declaration import Option, flag_name, option, variable_name
from matex_tf.settings.in_use import current, use
from matex_tf.settings.listing import Group, by_group, tables
from matex_tf.settings.run_settings import Settings, as_flags, options

__all__ = [
    "Group",
    "Option",
    "SettingError",
    "Settings",
    "as_flags",
    "by_group",
    "current",
    "flag_name",
    "option",
    "options",
    "tables",
    "use",
    "variable_name",
]
