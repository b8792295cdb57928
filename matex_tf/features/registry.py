"""The features that are installed. Each package names its own in an entry point of the group `matex_tf.features`.

    setup(entry_points={"matex_tf.features": ["echo = my_package:register"]})

The function takes no arguments and returns a `Feature`:

    def register():
        return Feature(commands={"echo": Command("print words: matex-tf echo WORDS", "my_package.echo")})
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matex_tf.errors import MatexError

GROUP = "matex_tf.features"


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of `matex-tf`.

    Attributes:
        text: its line in `matex-tf --help`.
        module: the name of a module with `parser()`, a `matex_tf.job.command_line.Parser`, and `command(given)`, which
            takes what that parser gives and returns the exit code.
        needs_words: whether it prints its help if no words follow it.
    """

    text: str
    module: str
    needs_words: bool = False


@dataclasses.dataclass(frozen=True)
class Feature:
    """What a feature adds. It names its modules and does not import them: most jobs need none.

    Attributes:
        commands: of `matex-tf`, by their names.
        settings: where its frozen dataclass of settings is, as "package.module:Class"; each field is declared by
            `matex_tf.settings.option`. With a method `check(settings, ranks)` it refuses what does not go together;
            `refuse_aside()` is called if a script imports Horovod's names, `refuse_keras_2()` if it trains a model of
            Keras 2, and `finish()` when it has ended. `without_effect_alone` is a text of flags that one rank makes
            no use of. Where one is not the default, `world_that_trains(world)` and
            `training_ranks(ranks)` say who trains, and `begin(world)` is called on those ranks before the script.
        pages: the topics of its settings, and the page of the docs that says more about each.
        strategies: choices of `--strategy`, and where the class of each is.
        names: classes that `matex_tf` has under their own names, and the module of each.
        patches: modules that are patched, and the module of ours that patches each; rows as in `patches/table.py`.
        recording: the same where a training is recorded (`core.starting.recorded`), on one rank too. They come before
            the patches of the core, and so see what these give to Keras.
        any_backend: those of its patches that serve Keras on other backends than TensorFlow too.
        step_parts: classes of `patches.steps.step_part.StepPart`, as "package.module:Class".
        backends: what Keras may compute with beside TensorFlow in trainings that the patches split: names as in
            KERAS_BACKEND, which are those of their packages.
        faults: choices of `--faults`: what each does, in sentences, and its module. That has `run`, which takes what
            `cli.run.command` gives it, starts the job and returns its exit code; and `begin(world, settings, script)`,
            which each rank calls before its script, and which puts `core.slots.Checkpoints` into its world.
        formats: modules of file formats, whose FORMAT is a `readers.tables.format.Format`. A file is shown to them
            before it is taken for CSV.
        starts: functions without arguments, as "package.module:function", that each process calls before its script.
        enters: functions, as "package.module:function", that `python -m matex_tf` calls with its arguments before it
            imports what takes time. One may return in another process, which is the rank from then on.
        shows: functions, as "package.module:function", that each rank of a job that is watched calls with its `World`
            and the settings. Each gives what the first rank calls after its reports, a `watching.reporter.Show`; or
            None.
        watched: a function, as "package.module:function", that each rank of a job that is watched calls before the
            script, with its `World`, the settings, and what it runs, see `watching.registry.Entry.run`.
        beside: a function, as "package.module:function", that takes the command line of `matex-tf run`, the settings
            and the name of the job, see `core.sign.Sign.job`. It gives a context manager, inside of which the job runs.
        joins: a function, as "package.module:function", that takes the `watching.registry.Entry` of a running job, its
            file, and settings that are asked for, and gives the settings with which other ranks join it, as texts by
            name; None where they cannot.
        facts: the names of Keras and TensorFlow that it rests on, a tuple of `facts.fact.Fact`, which
            `matex-tf doctor --keras` checks, as "package.module:NAME".
        package: what to install to have it, as pip takes it; for features of matex_tf itself, which known.txt lists.
    """

    commands: Mapping[str, Command] = dataclasses.field(default_factory=dict)
    settings: str = ""
    pages: Mapping[str, str] = dataclasses.field(default_factory=dict)
    strategies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    patches: Sequence[tuple[str, str]] = ()
    recording: Sequence[tuple[str, str]] = ()
    any_backend: Sequence[str] = ()
    step_parts: Sequence[str] = ()
    backends: Sequence[str] = ()
    faults: Mapping[str, Command] = dataclasses.field(default_factory=dict)
    formats: Sequence[str] = ()
    starts: Sequence[str] = ()
    enters: Sequence[str] = ()
    shows: Sequence[str] = ()
    watched: str = ""
    beside: str = ""
    joins: str = ""
    facts: str = ""
    package: str = ""


class EntryPoint(NamedTuple):
    """An entry point of `GROUP`.

    Attributes:
        name: that of the feature.
        target: its function, as "package.module:function".
        package: the installed package that declares it, with its version, as in "matex_tf-0.1.0".
    """

    name: str
    target: str
    package: str


@functools.cache
def found() -> Mapping[str, Feature]:
    """The features that are installed, see `features_in`; looked for once in a process."""
    return features_in(sys.path)


def features_in(path: Sequence[str]) -> dict[str, Feature]:
    """The features that packages in these directories declare, by their names in alphabetical order.

    Args:
        path: directories, as in `sys.path`.

    Raises:
        MatexError: one cannot be imported, or two have the same name, or add the same.
    """
    features = {}
    for point in _once(entry_points(path)):
        if (feature := _load(point)) is not None:
            features[point.name] = feature
    for kind in ("commands", "strategies", "faults", "names"):
        _refuse_two(features, kind)
    return features


def commands() -> dict[str, Command]:
    """The commands of all features, by their names."""
    return {name: one for feature in found().values() for name, one in feature.commands.items()}


def faults() -> dict[str, Command]:
    """The choices of `--faults` of all features, by their names."""
    return {name: one for feature in found().values() for name, one in feature.faults.items()}


def backends() -> dict[str, str]:
    """What Keras may compute with, as in KERAS_BACKEND, and what to install for it."""
    return {"tensorflow": "matex_tf[cpu]"} | {
        name: feature.package or name for feature in found().values() for name in feature.backends
    }


def functions(field: str) -> Iterator[Callable[..., Any]]:
    """The functions that features name in one of their fields, such as "starts"."""
    for feature in found().values():
        named = getattr(feature, field)
        for place in filter(None, [named] if isinstance(named, str) else named):
            module, _, function = place.partition(":")
            yield getattr(importlib.import_module(module), function)


def start() -> None:
    """Let features do what each process has to do before its script begins."""
    for starts in functions("starts"):
        starts()


def enter(arguments: Sequence[str]) -> None:
    """Let features do what comes before all imports.

    Args:
        arguments: of `python -m matex_tf`.
    """
    for enters in functions("enters"):
        enters(arguments)


def entry_points(path: Sequence[str]) -> Iterator[EntryPoint]:
    """The entry points that packages in these directories declare.

    `importlib.metadata` gives the same and takes 45 ms, where `matex-tf --help` takes 60 in all; this takes 1.

    Args:
        path: directories, as in `sys.path`.
    """
    for folder in dict.fromkeys(path):
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    text = Path(folder, name, "entry_points.txt").read_text(encoding="utf-8")
                except OSError:
                    continue
                for line in text.partition(f"[{GROUP}]\n")[2].partition("\n[")[0].splitlines():
                    feature, equals, target = line.partition("=")
                    if equals:
                        yield EntryPoint(feature.strip(), target.strip(), name.rpartition(".")[0])


def _once(points: Iterator[EntryPoint]) -> list[EntryPoint]:
    """Each feature once: an editable installation is found in the environment and in its checkout."""
    known: dict[str, EntryPoint] = {}
    for point in points:
        first = known.setdefault(point.name, point)
        if first.target != point.target:
            raise MatexError(
                f"two packages have a feature {point.name}: {first.package} ({first.target}) and {point.package} "
                f"({point.target}). Uninstall one."
            )
    return [known[name] for name in sorted(known)]


def _load(point: EntryPoint) -> Feature | None:
    """What a feature adds; None if its folder was left out of the package."""
    module, _, function = point.target.partition(":")
    try:
        feature: Any = getattr(importlib.import_module(module), function)()
        assert isinstance(feature, Feature), f"{function}() returns no Feature"
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            return None
        raise MatexError(
            f"the feature {point.name} of the package {point.package} cannot be used ({type(error).__name__}: "
            f"{error}): upgrade or uninstall that package."
        ) from error
    return feature


def _refuse_two(features: Mapping[str, Feature], kind: str) -> None:
    """Refuse two features that add the same command or strategy."""
    owner: dict[str, str] = {}
    for feature, one in features.items():
        for name in getattr(one, kind):
            first = owner.setdefault(name, feature)
            if first != feature:
                raise MatexError(f"the features {first} and {feature} both add {name} to the {kind}: uninstall one.")


def installed_by(word: str) -> str:
    """What has a command or a setting that is not there, in brackets; "" if no feature that matex_tf knows of has it.

    Args:
        word: a command, a flag, an environment variable; or such with a value: --faults=, KERAS_BACKEND= or format=.
    """
    flag = "--" + word.removeprefix("MATEX_").lower().replace("_", "-") if word.startswith("MATEX_") else word
    for line in Path(__file__).with_name("known.txt").read_text(encoding="utf-8").splitlines():
        package, feature, *words = line.split()
        if flag in words and feature not in found():
            return f" (of the feature {feature}, which is not installed: pip install '{package}')"
    return ""
