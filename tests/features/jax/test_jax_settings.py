"""Keras on JAX, without JAX: which settings are refused, and how it is known that Keras will compute with it."""

import json
import subprocess
import sys

import pytest
from there import case, needs

from matex_tf import settings
from matex_tf.errors import SettingError
from matex_tf.features import found
from matex_tf.features.jax import team
from matex_tf.patches import table
from matex_tf.patches.imports import other_frameworks


@pytest.mark.parametrize(
    "asked",
    [
        case("groups", {"strategy": "local"}),
        {"codec": "int8"},
        {"shard": "state"},
        {"batch": "per-rank"},
        {"reproducible": "4"},
        case("dynamics", {"grow": "on"}),
        case("dynamics", {"apoptosis": "on", "apoptosis_tolerance": "0.1"}),
    ],
)
def test_settings_that_are_refused(asked, monkeypatch):
    monkeypatch.setattr(settings, "current", lambda: settings.Settings.read(asked))
    with pytest.raises(SettingError, match=f"{settings.flag_name(next(iter(asked)))} is for Keras on TensorFlow"):
        team.refuse()


@needs("restart")
def test_settings_that_are_served(monkeypatch):
    served = {"faults": "restart", "files": "once", "seed": "3", "progress": "off", "require_sharing": "on"}
    monkeypatch.setattr(settings, "current", lambda: settings.Settings.read(served))
    team.refuse()


def test_shrink(monkeypatch):
    """It has a line of its own, which says what to take instead."""
    monkeypatch.setattr(settings, "current", lambda: settings.Settings.read({"faults": "shrink"}))
    with pytest.raises(SettingError, match="take --faults restart"):
        team.refuse()


@pytest.mark.parametrize(
    "variable, kept, expected",
    [
        ("jax", "torch", "jax"),
        ("", "jax", "jax"),
        ("", None, "tensorflow"),
        ("", 3, "tensorflow"),
        ("torch", None, "torch"),
    ],
)
def test_the_backend_before_keras_is_imported(tmp_path, monkeypatch, variable, kept, expected):
    """By the environment, and then by the file that Keras keeps."""
    monkeypatch.delitem(sys.modules, "keras.src.backend.config", raising=False)
    monkeypatch.setenv("KERAS_BACKEND", variable)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    if kept is not None:
        (tmp_path / "keras.json").write_text(json.dumps({"backend": kept} if kept != 3 else 3))
    assert other_frameworks.backend_asked_for() == expected


def test_patches_need_no_tensorflow():
    """Those for JAX are imported in the middle of Keras, and TensorFlow may be missing."""
    names = [f"matex_tf.patches.{patch}" for patch in table.ANY_BACKEND]
    names += [patch for feature in found().values() for patch in feature.any_backend]
    names += [patch for _, patch in found()["jax"].patches]
    text = f"import importlib, sys; sys.modules['tensorflow'] = None; [*map(importlib.import_module, {names})]"
    subprocess.run([sys.executable, "-c", text], check=True)


def test_patches_for_other_backends_are_there():
    known = {patch for _, patch in table.PATCHES}
    assert set(table.ANY_BACKEND) <= known
