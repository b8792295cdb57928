"""What `matex-tf trace` makes of a timeline."""

import json
import sys

import pytest

from matex_tf.cli.main import main
from matex_tf.core.trace import BY_XLA
from matex_tf.features.trace import command as timeline
from matex_tf.features.trace import page as timeline_page
from matex_tf.features.trace.command import PARTS
from matex_tf.planning.timeline import Step


def test_the_table_adds_up(capsys):
    """Step and parts are means over the same steps, and one that waited for the machine is not among them."""
    lengths = [9e9, 9e9, 9e9] + [1000.0 * (4 + number % 3) for number in range(16)] + [2e6]
    steps = [
        timeline.Step(0, "train step", 0.0, one, parts={"compute": 0.75 * one, "apply": 0.25 * one}) for one in lengths
    ]
    timeline.show(steps)
    row = [float(word) for word in capsys.readouterr().out.splitlines()[-2].split()]
    assert row[0] == 0 and 4 < row[1] < 6 and sum(row[2:]) == pytest.approx(row[1], abs=0.02)


def test_steps_that_xla_divides(tmp_path, capsys):
    """What is not waiting is computing, and a line says what is in it."""
    step = {"ph": "X", "pid": 0, "ts": 100.0, "dur": 50.0, "name": "step", "args": {"what": f"train step, {BY_XLA}"}}
    wait = {"ph": "X", "pid": 0, "ts": 101.0, "dur": 8.0, "name": "wait"}
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps({"traceEvents": [step, wait]}))
    (found,) = timeline.read(str(path))
    assert (found.parts["compute"], found.parts["wait"]) == (42.0, 8.0)
    timeline.show([found])
    assert "computing has the exchange in it" in capsys.readouterr().out
    assert main(["trace", str(path)]) == 0
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("[]", "is not a timeline"),
        ("{", "is not a timeline"),
        ('{"traceEvents": []}', "has no step"),
    ],
)
def test_no_timeline(tmp_path, capsys, content, message):
    """A file that is something else: one clear message."""
    path = tmp_path / "file.json"
    if content is not None:
        path.write_text(content)
    assert main(["trace", str(path)]) == 1
    assert message in capsys.readouterr().err


def test_no_matplotlib(tmp_path, capsys, monkeypatch):
    """The table is there without it; a picture that was asked for is an error."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = tmp_path / "timeline.json"
    step = {"ph": "X", "pid": 0, "ts": 100.0, "dur": 50.0, "name": "step", "args": {"what": "train step"}}
    path.write_text(json.dumps({"traceEvents": [step]}))
    assert main(["trace", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "compute" in shown and "no picture is drawn: a picture needs matplotlib" in shown
    assert main(["trace", str(path), "--png", str(tmp_path / "step.png")]) == 1
    assert "a picture needs matplotlib" in capsys.readouterr().err


def test_bad_flag(capsys):
    """It is named."""
    assert main(["trace", "file.json", "--gif", "x"]) == 2
    assert "--gif" in capsys.readouterr().err


def steps(parts, gap=0.0, length=10_000.0):
    """Ten steps of each rank, whose parts are shares of it."""
    return [
        Step(rank, f"train step {number} of </script>", number * length * (1 + gap), length,
             parts={name: share * length for name, share in own.items()},
             spans=[("wait", number * length * (1 + gap) + 5, 10.0, "<b>")])
        for rank, own in enumerate(parts) for number in range(10)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "gap", "length", "expected"),
    [
        ([{"compute": 0.9}] * 2, 0.0, 1e4, "More ranks will pay"),
        ([{"compute": 0.9}] * 2, 1.0, 1e4, "46% of the time lies between steps"),
        ([{"wait": 0.5}, {"wait": 0.05}], 0.0, 1e4, "The others wait for rank 1"),
        ([{"wait": 0.5}, {"wait": 0.4}], 0.0, 1e4, "they share cores"),
        ([{"network": 0.5}, {"network": 0.4}], 0.0, 1e4, "The network takes 50% of a step"),
        ([{"reduce": 0.6}] * 2, 0.0, 1e3, "batches are small for so many ranks"),
    ],
)
def test_page(parts, gap, length, expected):
    """What to try follows from where time goes. Names of the run cannot be taken for HTML."""
    all_steps = steps(parts, gap, length)
    usual = {rank: [step for step in all_steps if step.rank == rank] for rank in range(2)}
    advice = timeline_page.advice(all_steps, usual)
    assert expected in " ".join(advice), advice
    page = timeline_page.render(all_steps, usual, PARTS, "<img src=x>")
    assert "@" not in page.replace("@media", "") and "<img" not in page and page.count("</script>") == 2
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert [len(lane["steps"]) for lane in data["lanes"]] == [10, 10]
