"""The examples of docs/contributing.md do what the page says."""

import contextlib
import json

import numpy as np
import pytest
import virtual

from matex_tf import settings, strategies
from matex_tf.cli.main import main


def test_strategy(ranks, tmp_path):
    """All ranks end with the same weights; no gradient was longer than 1, so no sum of n ranks is longer than n."""
    for size, found in ranks("contributing:strategy", [2, 3], folder=str(tmp_path)).items():
        assert all(one["weights"] == found[0]["weights"] for one in found)
        assert found[0]["moved"] == pytest.approx(size, rel=1e-5)
        assert found[0]["note"].startswith("--strategy clipped")


def test_a_registered_strategy_is_known(monkeypatch, tmp_path, capsys):
    """To --strategy and its help, to the table of `plan`, its advice and its picture: all from the one registry."""
    with pytest.raises(settings.SettingError, match="sync or pipe or gossip"):
        settings.Settings.read({"strategy": "clipped"})
    clipped = example("A strategy")["Clipped"]
    monkeypatch.setitem(strategies.STRATEGIES, "clipped", clipped)
    assert settings.Settings.read({"strategy": "clipped"}).strategy == "clipped"
    assert f"`clipped`: {clipped.text}." in settings.tables()
    with contextlib.suppress(SystemExit):
        main(["run", "--help"])
    assert "sync|pipe|gossip|clipped" in capsys.readouterr().out
    drawn = tmp_path / "plan.png"
    plan = ["--compute", "10ms", "--parameters", "1M", "--network", "1Gbit,50us", "--ranks", "4"]
    assert main(["plan", *plan, "--json", str(tmp_path / "plan.json"), "--png", str(drawn)]) == 0
    assert drawn.stat().st_size > 0
    for row in json.loads((tmp_path / "plan.json").read_text())["rows"]:
        assert row["seconds"]["clipped int8"] == row["seconds"]["sync int8"]
    assert "clipped" in capsys.readouterr().out


def example(heading):
    from cases.contributing import example

    return example(heading)


def test_algorithm():
    arrays = [np.arange(5.0) + rank for rank in range(4)]
    virtual.run(example("An algorithm between nodes")["star"], arrays)
    assert all(np.array_equal(array, 4 * np.arange(5.0) + 6) for array in arrays)


def test_file_format(ranks, tmp_path):
    """The ranks have all rows together, each once; a file that is cut off is refused by all. Nobody names the format.

    Ranks that read exchange no gradients.
    """
    rows = np.arange(21, dtype="<f4").reshape(7, 3)
    path = tmp_path / "rows.flt"
    path.write_bytes(b"FLT1" + (3).to_bytes(4, "little") + rows.tobytes())
    given = {"path": str(path), "folder": str(tmp_path)}
    for found in ranks("contributing:file_format", [1, 3], meets="", **given).values():
        assert [row for part, _ in found for row in part] == rows.tolist()
        assert {name for _, name in found} == {"flt"}
    path.write_bytes(path.read_bytes()[:-1])
    ranks.refused("contributing:file_format", [3], error="DataError", **given)


def test_patch(ranks):
    """Rank 0 alone prints a summary. Ranks do not meet for that."""
    for printed in ranks("contributing:patch", [1, 3], apart="it prints what a patch does on each rank").values():
        assert printed[0] > 0
        assert not any(printed[1:])
