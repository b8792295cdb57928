"""The examples of docs/contributing.md do what the page says."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import virtual

from matex_tf import features, settings, strategies
from matex_tf.cli.main import main
from scripts.rooms import modules
from tests.support.cases import contributing


def test_strategy(ranks, tmp_path):
    """All ranks end with the same weights; no gradient was longer than the option says, so no sum of n ranks is longer
    than n times that. The option is a flag, and a variable of the environment."""
    for size, found in ranks(contributing.strategy, [2, 3], folder=str(tmp_path)).items():
        for trained, norm in zip(zip(*found, strict=True), (1, 2, 3), strict=True):
            assert all(one["weights"] == trained[0]["weights"] for one in trained)
            assert trained[0]["moved"] == pytest.approx(norm * size, rel=1e-5)
            assert trained[0]["changes"] == f"the gradients of each rank are clipped to {norm}"


def test_a_registered_strategy_is_known(monkeypatch, tmp_path, capsys):
    """To --strategy and its help, to the table of `plan`, its advice and its picture: all from the one registry."""
    with pytest.raises(settings.SettingError, match=" or ".join(strategies.STRATEGIES)):
        settings.Settings.read({"strategy": "clipped"})
    clipped = example("A strategy")["Clipped"]
    monkeypatch.setitem(strategies.STRATEGIES, "clipped", clipped)
    assert settings.Settings.read({"strategy": "clipped"}).strategy == "clipped"
    assert f"`clipped`: {clipped.text}." in settings.tables()
    with contextlib.suppress(SystemExit):
        main(["run", "--help"])
    shown = capsys.readouterr().out
    assert "|".join(strategies.STRATEGIES) in shown
    assert "strategy clipped (docs/strategies.md):\n  --clipped-norm N " in shown
    assert "| `--clipped-norm` | `MATEX_CLIPPED_NORM` | `1` | The longest that" in settings.tables()
    with pytest.raises(settings.SettingError, match="--clipped-norm is 0; it must be 1 or more"):
        settings.Settings.read({"clipped_norm": "0"})
    if "plan" not in features.found():
        return
    drawn = tmp_path / "plan.png"
    plan = ["--compute", "10ms", "--parameters", "1M", "--network", "1Gbit,50us", "--ranks", "4"]
    assert main(["plan", *plan, "--json", str(tmp_path / "plan.json"), "--png", str(drawn)]) == 0
    assert drawn.stat().st_size > 0
    for row in json.loads((tmp_path / "plan.json").read_text())["rows"]:
        assert row["seconds"]["clipped int8"] == row["seconds"]["sync int8"]
    assert "clipped" in capsys.readouterr().out


def example(heading):
    from tests.support.cases.contributing import example

    return example(heading)


def test_transport(tmp_path):
    """Three processes that no MPI has started: collectives, sums within a node and between nodes, and an error where
    ranks differ. No message is left over."""
    from tests.support.cases.contributing import block

    (tmp_path / "files.py").write_text(block("A transport"))
    messages = tmp_path / "messages"
    messages.mkdir()
    given = {**os.environ, "PYTHONPATH": str(tmp_path), "FILES_SIZE": "3", "FILES_DIRECTORY": str(messages)}
    line = [sys.executable, Path(virtual.__file__).with_name("file_rank.py"), "files"]
    started = [
        subprocess.Popen(line, env={**given, "FILES_RANK": str(rank)}, stdout=subprocess.PIPE) for rank in range(3)
    ]
    try:
        said = [json.loads(one.communicate(timeout=240)[0]) for one in started]
    finally:
        for one in started:
            one.kill()
            one.wait()
    for rank, found in enumerate(said):
        assert found.pop("error").startswith("the ranks have gone different ways. rank 0: stop; ranks 1-2: go on.")
        assert found == {
            "sum": [3, 6, 9],
            "rows": [[1, 1], [2, 2], [2, 2]],
            "object": {"from": 1},
            "array": [0, 0, 0],
            "own": "abc"[rank],
            "swapped": [rank, 10 + rank, 20 + rank],
            "few": True,
            "many": True,
            "mpi4py": False,
        }
    assert not list(messages.iterdir())


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
    for found in ranks(contributing.file_format, [1, 3], meets="", **given).values():
        assert [row for part, _ in found for row in part] == rows.tolist()
        assert {name for _, name in found} == {"flt"}
    path.write_bytes(path.read_bytes()[:-1])
    ranks.refused(contributing.file_format, [3], error="DataError", **given)


def test_patch(ranks):
    """Rank 0 alone prints a summary. Ranks do not meet for that."""
    for printed in ranks(contributing.patch, [1, 3], apart="it prints what a patch does on each rank").values():
        assert printed[0] > 0
        assert not any(printed[1:])


def test_step_part(ranks, tmp_path):
    """It touches its own file and one line, and notes the rows of training steps on each rank."""
    found = ranks(contributing.step_part, [2, 3], folder=str(tmp_path))
    assert found[2] == [[2, 2, 1] * 2, [2, 2, 1] * 2]
    assert [sum(rows) for rows in zip(*found[3], strict=True)] == [4, 4, 2] * 2


def test_steps_stay_simple():
    """Running a step takes no decision of a feature: few branches, and no module of one."""
    path = modules()["patches.fit.step.shared_step"]
    rule = ["--isolated", "--select", "C901", "--config", "lint.mccabe.max-complexity=9"]
    ruff = [sys.executable, "-m", "ruff", "check", *rule, path]
    done = subprocess.run(ruff, capture_output=True, text=True)
    assert not done.returncode, done.stdout
    text = path.read_text()
    assert not [name for name in ("resume_fit", "dynamics", "pruning", "groups") if f"import {name}" in text]
