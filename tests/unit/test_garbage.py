"""While TensorFlow and Keras are imported Python collects no garbage."""

import gc
import importlib
import importlib.machinery
import random
import sys

import numpy as np
import pytest

from matex_tf.launch import garbage
from matex_tf.patches.turns import reach

OUTER = "import gc\nbefore = gc.isenabled()\nimport inner_made_up\nafter = gc.isenabled()\n"


@pytest.fixture
def imports(tmp_path, monkeypatch):
    """Imports a made-up module of some code."""
    monkeypatch.setattr(garbage, "MODULES", {"outer_made_up", "inner_made_up"})
    monkeypatch.setattr(garbage, "_OF_LAYERS", {"other_made_up"})
    monkeypatch.setattr(sys, "meta_path", [garbage.Finder(), *sys.meta_path])
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()

    def do(**code):
        for name, text in code.items():
            (tmp_path / f"{name}_made_up.py").write_text(text)
        return importlib.import_module("outer_made_up")

    yield do
    for name in ("outer_made_up", "inner_made_up"):
        sys.modules.pop(name, None)
    gc.unfreeze()


def test_import(imports):
    """Nothing is collected until the outermost module is there; it is as without us."""
    frozen = gc.get_freeze_count()
    module = imports(outer=OUTER, inner="import gc\nsaid = gc.isenabled()\n")
    assert (module.before, module.after, sys.modules["inner_made_up"].said) == (False, False, False)
    assert gc.isenabled() and gc.get_freeze_count() > frozen
    assert type(module.__spec__.loader) is type(module.__loader__) is importlib.machinery.SourceFileLoader


def test_layers_stay_known(imports, monkeypatch):
    """Where another Keras has been imported nothing is hidden: its layers are looked for."""
    monkeypatch.setitem(sys.modules, "other_made_up", sys)
    frozen = gc.get_freeze_count()
    assert not imports(outer=OUTER, inner="").after and gc.get_freeze_count() == frozen and gc.isenabled()


def test_generators_made_before(imports):
    """They are hidden with what was imported, and known: with them Python code draws that is looked at."""

    class Own(random.Random):
        pass

    made = [np.random.default_rng(1), np.random.RandomState(2), random.Random(3), Own(4)]
    imports(outer=OUTER, inner="")
    hidden = not {id(one) for one in made} & {id(one) for one in gc.get_objects()}
    known = {id(one) for one in garbage.older_generators()}
    assert hidden and known.issuperset(map(id, made))
    assert {id(one) for one in reach._generators_of_process()}.issuperset(map(id, made))


def test_an_import_that_fails(imports):
    """The error is the module's own, and garbage is collected again."""
    with pytest.raises(ZeroDivisionError):
        imports(outer=OUTER, inner="1 / 0\n")
    assert gc.isenabled()
    with pytest.raises(ModuleNotFoundError, match="No module named 'nothing_made_up'"):
        imports(outer="import nothing_made_up\n")


def test_a_script_that_collects_nothing(imports):
    """Where the script has switched collections off they stay off."""
    gc.disable()
    try:
        assert not imports(outer=OUTER, inner="").after and not gc.isenabled()
    finally:
        gc.enable()
