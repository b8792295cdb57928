"""Settings: flags, environment, defaults, errors."""

import dataclasses
import importlib
import subprocess
import sys

import pytest
from there import case, needs

from matex_tf import features, settings
from matex_tf.errors import SettingError
from matex_tf.settings import Settings


def test_defaults():
    """With nothing given, and with nothing to hand on."""
    assert Settings.read({}, {}) == Settings()
    assert Settings().as_environment() == {}


def test_flag_before_environment_before_default():
    """A flag wins over the environment."""
    read = Settings.read({"batch": "global"}, {"MATEX_BATCH": "per-rank", "MATEX_THREADS": "3", "MATEX_NOTES": "off"})
    assert (read.batch, read.threads, read.notes, read.seed) == ("global", 3, False, -1)


def test_environment_gives_the_same_settings():
    """What `as_environment` writes, `read` reads."""
    given = Settings(batch="per-rank", output="logs", threads=2, seed=5, notes=False)
    assert Settings.read({}, given.as_environment()) == given


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"batch": "half"}, "--batch is 'half'; it can be global or per-rank"),
        ({"threads": "-1"}, "--threads is -1; it must not be negative"),
        ({"threads": "two"}, "--threads is 'two'; it must be a whole number"),
        ({"notes": "maybe"}, "--notes is 'maybe'; it can be on or off"),
        ({"output": ""}, "--output is empty"),
        case("restart", {"checkpoint_seconds": "-1"}, "--checkpoint-seconds is -1; it must be 0 or more seconds"),
        case(
            "restart", {"checkpoint_seconds": "soon"}, "--checkpoint-seconds is 'soon'; it must be a number of seconds"
        ),
    ],
)
def test_bad_values(flags, message):
    """The message names the flag, the value and what it can be."""
    with pytest.raises(SettingError, match=message):
        Settings.read(flags, {})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        case("gossip", {"strategy": "gossip"}, "--strategy gossip do not go together: .* Take --strategy sync, or"),
        ({"codec": "int8"}, "--codec int8 do not go together: .* Take --codec none, or"),
        ({"faults": "shrink"}, "--faults shrink do not go together: .* Take --faults abort, or"),
        ({"schedule": "funneled"}, "--schedule funneled do not go together: .* Take --schedule chained, or"),
        ({"reproducible": "4"}, "--reproducible 4 do not go together: .* Leave out --reproducible, or"),
    ],
)
def test_horovod_refuses(flags, message):
    """What does not go with it is refused in words that name both, and say what to do."""
    with pytest.raises(SettingError, match=f"--transport horovod and {message} leave out --transport horovod"):
        Settings.read({"transport": "horovod", **flags}, {})


def test_horovod_that_is_not_installed(monkeypatch, tmp_path):
    """Neither a folder of that name, nor the names that matex_tf serves if it has that feature, are Horovod."""
    wanted = Settings.read({"transport": "horovod"}, {})
    (tmp_path / "horovod").mkdir()
    if "horovod" in features.found():
        finder = importlib.import_module("matex_tf.features.horovod.alias").Finder()
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # of which nothing is imported any more
    with pytest.raises(SettingError, match="--transport horovod needs Horovod, and .* has none"):
        wanted.refuse_conflicts(2)
    wanted.refuse_conflicts(1)
    (tmp_path / "horovod" / "__init__.py").write_text("")
    importlib.invalidate_caches()
    wanted.refuse_conflicts(2)


def test_bad_environment_names_the_variable():
    """So that the user knows where to look."""
    with pytest.raises(SettingError, match="MATEX_SEED is 'x'"):
        Settings.read({}, {"MATEX_SEED": "x"})


def test_frozen():
    """A run cannot change its own settings."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().seed = 3


def test_every_setting_is_described():
    """Once in the tables, in one of the topics."""
    tables = settings.tables()
    for option in settings.options():
        assert option.text.endswith(".")
        assert tables.count(f"| `{option.flag}` |") == 1


def test_strategies_have_their_names():
    """Settings lie below strategies and list their names; the registry has the same, and codecs likewise."""
    from matex_tf.exchange.network.codec import CODECS
    from matex_tf.strategies import STRATEGIES

    choices = {option.name: option.choices for option in settings.options()}
    assert choices["strategy"] == tuple(STRATEGIES)
    assert choices["codec"] == ("none", *CODECS)


@needs("gossip")
def test_options_of_strategies():
    """They are read, changed, handed on and compared as all others; each strategy has its own of them."""
    from matex_tf.features.gossip.strategy import GossipOptions
    from matex_tf.strategies.pipe import PipeOptions

    read = Settings.read({"pipe_width": "3"}, {"MATEX_PIPE_WIDTH": "4", "MATEX_GOSSIP_SYNC": "on"})
    assert read.of(PipeOptions) == PipeOptions(pipe_width=3)
    assert read.of(GossipOptions) == GossipOptions(gossip_sync=True)
    assert read.as_environment() == {"MATEX_PIPE_WIDTH": "3", "MATEX_GOSSIP_SYNC": "on"}
    assert Settings.read({}, read.as_environment()) == read == Settings().changed(gossip_sync=True, pipe_width=3)
    assert read.changed(pipe_width=2, gossip_sync=False, seed=4) == Settings(seed=4)
    assert read.values()["pipe_width"] == 3 and read.values()["seed"] == -1
    with pytest.raises(SettingError, match="MATEX_PIPE_WIDTH is 0; it must be 1 or more"):
        Settings.read({}, {"MATEX_PIPE_WIDTH": "0"})
    with pytest.raises(TypeError, match="pipe_length"):
        Settings().changed(pipe_length=3)


def test_settings_are_light():
    """Every command reads the options of all strategies at its start: neither NumPy nor what lies above is imported."""
    code = (
        "import sys; from matex_tf import settings\n"
        "settings.Settings.read({'strategy': 'pipe', 'pipe_width': '3'}, {}); settings.tables()\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('numpy', 'tensorflow', 'matex_tf.'))))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    rooms = {".".join(name.split(".")[:2]) for name in loaded}
    assert rooms == {f"matex_tf.{name}" for name in ("errors", "features", "settings", "state", "strategies")}
