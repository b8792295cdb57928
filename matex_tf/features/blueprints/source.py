"""A blueprint as a file: YAML with ranges by name, or the config of a Keras model (JSON or YAML) with ranges in it.

    units: 32..512              read by the script: matex_tf.Blueprint("net.yaml").values
    dense_1.units: 32..512      an argument of the layer of that name, in a script that stays as it is
    conv2d*.filters: 8..64      of each layer whose name fits, as in the shell; commas list several names

In a config a value that is a range takes its place. A list with `repeat` beside it stands for its layers several times:
{repeat: 1..4, layers: [...]}.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from matex_tf.errors import MissingPackage, SettingError
from matex_tf.features.blueprints.ranges import Range, is_range, parse, parse_all

#: What a config of Keras has, and a file of ranges has not.
_OF_KERAS = "class_name"
#: How deep a blueprint may nest, and how many values it may have; a name of YAML that stands often counts each time.
_DEEPEST, _MOST = 100, 1_000_000


def read(path: str) -> dict[str, Any]:
    """What a file has.

    Raises:
        SettingError: it is not there, or cannot be read as what its name says it is.
        MissingPackage: it is YAML, and PyYAML is not installed.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"the blueprint {path} cannot be read: {error}.") from None
    try:
        found = json.loads(text) if path.endswith(".json") else _yaml(text)
        too_much = _too_much(found)
    except RecursionError:
        too_much = f"it nests more than {_DEEPEST} deep"
    except ValueError as error:
        raise SettingError(f"the blueprint {path} cannot be read: {error}.") from None
    if too_much:
        raise SettingError(f"the blueprint {path} cannot be read: {too_much}.")
    if not isinstance(found, dict) or not found:
        raise SettingError(f"the blueprint {path} must have names and ranges, such as units: 32..512.")
    return {str(name): value for name, value in found.items()}


def _too_much(found: Any) -> str:
    """Why nobody can go through what a file has, in words: YAML can have a part in itself; "" where all is well."""
    pending, count = [(found, 0)], 0
    while pending:
        value, depth = pending.pop()
        count += 1
        if depth > _DEEPEST:
            return f"it refers to itself, or nests more than {_DEEPEST} deep"
        if count > _MOST:
            return f"it has more than {_MOST:,} values"
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        pending += [(one, depth + 1) for one in inner]
    return ""


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise MissingPackage("a blueprint in YAML needs PyYAML: pip install 'matex_tf[yaml]', or write JSON.") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def is_config(blueprint: Mapping[str, Any]) -> bool:
    """Whether this is the config of a Keras model, and not ranges by name."""
    return _OF_KERAS in blueprint


def is_blueprint(path: str) -> bool:
    """Whether a word of a command line is a blueprint, by its ending; a script is none."""
    return os.path.splitext(path)[1] in (".yaml", ".yml", ".json")


def ranges(blueprint: Mapping[str, Any]) -> dict[str, Range]:
    """The ranges of a blueprint by name; those of a config are named by their layer, as dense_1.units.

    Raises:
        SettingError: one of them cannot be a range, or there is none.
    """
    if not is_config(blueprint):
        return parse_all(dict(blueprint))
    found: dict[str, Range] = {}
    resolve(blueprint, {}, found)
    if not found:
        raise SettingError("this config of a Keras model has no ranges: write units: 32..512 instead of a number.")
    return found


def resolve(config: Any, values: Mapping[str, Any], found: dict[str, Range] | None = None, path: str = "") -> Any:
    """A config without ranges.

    Args:
        config: of a model, or a part of one.
        values: of the ranges, by their names; those that are missing get the default.
        found: is given the ranges, where it is not None.
        path: the name of the layer that this is a part of.
    """
    if is_range(config):
        one = parse(path, config)
        if found is not None:
            found[path] = one
        return values.get(path, one.default)
    if isinstance(config, Mapping):
        inner = config.get("config")
        layer = inner.get("name", "") if isinstance(inner, Mapping) else ""
        here = layer or (path if _OF_KERAS not in config else config[_OF_KERAS].lower())
        result = {}
        for key, value in config.items():
            below = here if key in ("config", "layers") or isinstance(value, Mapping) else _joined(here, key)
            below = _joined(here, key) if isinstance(value, Mapping) and is_range(value) else below
            result[key] = _layers(value, values, found, here) if key == "layers" else resolve(
                value, values, found, below)  # fmt: skip
        return result
    if isinstance(config, (list, tuple)):
        return [resolve(one, values, found, path) for one in config]
    return config


def _joined(layer: str, key: str) -> str:
    return f"{layer}.{key}" if layer else str(key)


def _layers(layers: Any, values: Mapping[str, Any], found: dict[str, Range] | None, path: str) -> Any:
    """A list of layers, in which what is repeated stands several times, under names of its own."""
    if not isinstance(layers, list):
        return resolve(layers, values, found, path)
    result = []
    for place, layer in enumerate(layers):
        if not (isinstance(layer, Mapping) and "repeat" in layer):
            result.append(resolve(layer, values, found, path))
            continue
        name = layer.get("name", f"block_{place}")
        count = resolve(layer["repeat"], values, found, f"{name}.repeat")
        if not isinstance(count, int) or count < 0:
            raise SettingError(f"{name}.repeat is {count!r}; it must be a whole number, or a range of such as 1..4.")
        for time in range(count):
            result += [_renamed(one, time) for one in resolve(layer.get("layers", []), values, found, name)]
        if not count and found is not None:
            resolve(layer.get("layers", []), values, found, name)
    return result


def _renamed(layer: Any, time: int) -> Any:
    """The layer once more: its first copy keeps its name."""
    inner = layer.get("config") if isinstance(layer, Mapping) else None
    if not time or not isinstance(inner, Mapping) or "name" not in inner:
        return layer
    return {**layer, "config": {**inner, "name": f"{inner['name']}_{time}"}}
