"""Every part of scripts/bench starts; `all` divides its time, and names what fails; `compare` finds what is slower."""

import importlib
import json
import re
import shlex
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from benchmarks import all as bench_all
from benchmarks import compare, page, scale, startup, tables
from scripts import doc_commands

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "benchmarks").rglob("*.py"))
MODULES = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in FILES]
#: The parts by the list that `scripts/bench` prints.
LISTED = re.findall(r"^#   (\w+) ", (ROOT / "scripts/bench").read_text(), re.MULTILINE)


@pytest.mark.parametrize("module", [name for name in MODULES if not name.endswith("__init__")])
def test_a_module_is_imported(module):
    importlib.import_module(module)


def test_scripts_bench_lists_every_part():
    parts = {
        name.removeprefix("benchmarks.").removesuffix(".__main__")
        for name, file in zip(MODULES, FILES, strict=True)
        if re.search(r'tables\.parser\("|prog="scripts/bench ', file.read_text())
    }
    assert set(LISTED) == parts - {"tables"}


@pytest.mark.parametrize("part", LISTED)
def test_a_part_prints_its_help(part, monkeypatch, capsys):
    folder = (ROOT / "benchmarks" / part).is_dir()
    module = importlib.import_module(f"benchmarks.{part}{'.__main__' * folder}")
    monkeypatch.setattr(sys, "argv", [part, "--help"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    said = capsys.readouterr().out
    assert ended.value.code == 0 and f"usage: scripts/bench {part}" in said
    assert part in ("all", "compare", "peers") or "--json" in said


@pytest.fixture
def written(tmp_path, monkeypatch, capsys):
    """Writes the file of a part with one table."""

    def write(name, part, columns, rows, **kinds):
        monkeypatch.setattr(sys, "argv", [part, "--json", str(tmp_path / name)])
        tables.parse(tables.parser(part, "Seconds."))
        tables.show("seconds", columns, rows, **kinds)
        tables.keep({"found": 1})
        capsys.readouterr()
        return str(tmp_path / name)

    return write


def compared(monkeypatch, *files):
    monkeypatch.setattr(sys, "argv", ["compare", *files])
    return compare.main()


SPREAD = {"less": ["ms"], "spreads": {"ms": "spread"}, "labels": 2}


def with_spread(*rows):
    return ["model", "ranks", "ms", "spread", "accuracy"], [["mlp", "2", *row] for row in rows]


def test_a_slowdown_is_found(written, monkeypatch, capsys):
    before = written("a", "step", *with_spread(("10.0", "9.5 to 10.4", "0.9")), **SPREAD)
    after = written("b", "step", *with_spread(("10.8", "10.6 to 11.0", "0.9")), **SPREAD)
    assert compared(monkeypatch, before, after) == 1
    said = capsys.readouterr().out
    assert "became slower" in said and "mlp, 2" in said and "1.08" in said
    assert compared(monkeypatch, after, before) == 0
    assert "became faster" in capsys.readouterr().out


@pytest.mark.parametrize(
    "row",
    [
        ("10.6", "10.3 to 11.0", "0.9"),  # a round was as fast as one before
        ("10.7", "10.4 to 11.0", "0.9"),
        ("10.0", "9.5 to 10.4", "0.1"),  # not a time
        ("", "", "0.9"),
        ("not reached", "", "0.9"),
    ],
)
def test_no_slowdown_within_the_rounds(row, written, monkeypatch, capsys):
    before = written("a", "step", *with_spread(("10.0", "9.5 to 10.4", "0.9"), ("1", "1 to 1", "1")), **SPREAD)
    after = written("b", "step", *with_spread(row, ("1", "1 to 1", "1")), **SPREAD)
    assert compared(monkeypatch, before, after) == 0
    assert "0 slower, 0 faster" in capsys.readouterr().out


@pytest.mark.parametrize(("cell", "slower"), [("1,109.0", 0), ("1,101", 0), ("1,120.0", 1), ("900.0", 0)])
def test_ten_percent_without_a_spread(cell, slower, written, monkeypatch):
    before = written("a", "input", ["data", "ms"], [["arrays", "1,010.0"]], less=["ms"])
    after = written("b", "input", ["data", "ms"], [["arrays", cell]], less=["ms"])
    assert compared(monkeypatch, before, after) == slower


def test_rounding_is_no_slowdown(written, monkeypatch):
    before = written("a", "codec", ["what", "ms"], [["encode", "0.04"]], less=["ms"])
    after = written("b", "codec", ["what", "ms"], [["encode", "0.05"]], less=["ms"])
    assert compared(monkeypatch, before, after) == 0


def test_rows_are_matched_by_labels_and_not_by_place(written, monkeypatch, capsys):
    before = written("a", "input", ["data", "ms"], [["arrays", "1.0"], ["csv", "9.0"]], less=["ms"])
    after = written("b", "input", ["data", "ms"], [["csv", "9.0"], ["records", "70.0"], ["arrays", "1.0"]], less=["ms"])
    assert compared(monkeypatch, before, after) == 0
    assert "2 figures compared" in capsys.readouterr().out


def test_files_of_different_parts_and_machines(written, monkeypatch, capsys, tmp_path):
    step = written("a", "step", ["data", "ms"], [["arrays", "1.0"]], less=["ms"])
    other = written("b", "input", ["data", "ms"], [["arrays", "1.0"]], less=["ms"])
    assert compared(monkeypatch, step, other) == 2
    said = capsys.readouterr()
    assert "only the first file has: step" in said.out and "no figure in common" in said.err
    there = json.loads(Path(step).read_text())
    there["machine"]["cores"] += 62
    (tmp_path / "c").write_text(json.dumps(there))
    assert compared(monkeypatch, step, str(tmp_path / "c")) == 0
    assert "different machines" in capsys.readouterr().out
    (tmp_path / "d").write_text("[]")
    with pytest.raises(SystemExit, match="2"):
        compared(monkeypatch, step, str(tmp_path / "d"))


def test_labels_that_repeat_are_printed_once_and_kept_in_each_row(written, tmp_path, monkeypatch, capsys):
    tables.show(
        "steps", ["model", "ranks", "ms"], [["mlp", "2", "1"], ["mlp", "4", "2"], ["lenet", "2", "3"]], labels=2
    )
    said = capsys.readouterr().out
    assert said.count("mlp") == 1 and said.count("lenet") == 1
    kept = json.loads(Path(written("a", "step", ["m", "r"], [["mlp", "2"], ["mlp", "4"]], labels=2)).read_text())
    assert kept["tables"][0]["rows"] == [["mlp", "2"], ["mlp", "4"]] and kept["figures"] == {"found": 1}


@pytest.mark.parametrize("part", bench_all.PARTS, ids=lambda part: part.name)
def test_options_of_a_part_are_its_own(part):
    assert part.benchmark in LISTED
    minutes = [level.minutes for level in part.levels]
    assert minutes == sorted(minutes)
    for level in part.levels:
        assert doc_commands.wrong_bench([part.benchmark, *shlex.split(level.options)]) == ""


@pytest.mark.parametrize("minutes", [0, 0.5, 3, 10, 60, 600])
def test_parts_fit_into_the_minutes(minutes):
    fits = bench_all.shares(bench_all.PARTS, minutes)
    assert sum(level.minutes for level in fits.values()) <= minutes
    assert minutes < 60 or set(fits) == {part.name for part in bench_all.PARTS}
    assert minutes < 600 or all(fits[part.name] == part.levels[-1] for part in bench_all.PARTS)


FAKES = {
    "good": """
        from benchmarks import tables
        tables.parse(tables.parser("good", ""))
        tables.show("seconds", ["model", "ms"], [["mlp", "1"]], less=["ms"])
    """,
    "bad": "raise SystemExit('no such device')",
    "hangs": """
        import subprocess, sys
        subprocess.run([sys.executable, "-c", "import time; time.sleep(999)"])
    """,
    "skips": "print('scripts/bench skips: skipped, it is Monday.')",
}


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """Parts that do as their names say."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    (tmp_path / "benchmarks" / "tables.py").write_text(Path(tables.__file__).read_text())
    for name, text in FAKES.items():
        (tmp_path / "benchmarks" / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.setattr(bench_all, "ROOT", tmp_path)
    monkeypatch.setattr(bench_all, "GRACE", 1)
    level = bench_all.Level(0.05)
    return [bench_all.Part(name, [level]) for name in FAKES]


def test_a_part_that_fails_is_named_and_the_others_go_on(fakes, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_all, "PARTS", fakes)
    monkeypatch.setattr(sys, "argv", ["all", "--minutes", "9", "--out", str(tmp_path / "out")])
    assert bench_all.main() == 1
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [one["status"] for one in report["parts"]] == ["done", "failed", "stopped", "left out"]
    why = [one["why"] for one in report["parts"]]
    assert "exit code 1" in why[1] and "its share was" in why[2] and "Monday" in why[3]
    assert "no such device" in (tmp_path / "out" / "bad.txt").read_text()
    left = [one for one in psutil.process_iter(["cmdline"]) if "time.sleep(999)" in " ".join(one.info["cmdline"] or [])]
    assert not left
    shown = (tmp_path / "out" / "report.html").read_text()
    assert "no such device" in shown and "<td>1</td>" in shown and "data:image/svg" in shown
    assert not re.search(r"(src|href)=['\"](?!data:|#)", shown)


def test_parts_that_need_hosts_are_left_out_where_there_are_none(fakes, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_all.emulated, "unavailable", lambda: "emulated hosts need root")
    outcomes = bench_all.run_all([bench_all.Part("good", fakes[0].levels, hosts=True)], 1, tmp_path)
    assert [(one.status, one.why) for one in outcomes] == [("left out", "emulated hosts need root")]


def test_parts_that_need_an_environment_are_left_out_where_nobody_has_made_it(fakes, tmp_path):
    peer = bench_all.peers.Peer("not-made", [])
    outcomes = bench_all.run_all([bench_all.Part("good", fakes[0].levels, peer=peer)], 1, tmp_path)
    assert [one.status for one in outcomes] == ["left out"]
    assert "scripts/bench peers --only not-made makes it" in outcomes[0].why


def test_the_phases_of_a_start_add_up_to_the_whole():
    began = {"matex_tf": 13.0, "script": 15.0, "imported": 19.0, "fit": 20.0, "stepped": 22.5}
    marks = {"began": began, "spent": {"world": 0.5, "patches": 1.0}, "parent": 11.0, "process": 12.0}
    found = startup.phases(10.0, marks, launched=True)
    assert set(found) == {*startup.PHASES} - {"server"} and sum(found.values()) == pytest.approx(12500)
    assert found["launcher"] == 1000 and found["TensorFlow"] == 3000 and found["world"] == 500
    spent = {"world": 0.5, "patches": 0.0, "forked": 1}
    forked = startup.phases(10.0, {**marks, "began": {**began, "matex_tf": 11.5}, "spent": spent}, launched=True)
    assert sum(forked.values()) == pytest.approx(12500) and forked["server"] == 1000 and "mpirun" not in forked
    plain = startup.phases(10.0, {**marks, "began": {"script": 11.0, "imported": 15.0}, "spent": {"patches": 0}}, False)
    assert plain == {"Python": 1000, "TensorFlow": 4000}


def test_the_cost_of_a_meeting_is_fitted():
    a, b, off = scale.fit([2, 4, 8, 16], [7, 9, 11, 13])
    assert (a, b) == (pytest.approx(5), pytest.approx(2)) and off == pytest.approx(0, abs=1e-9)
    assert scale.fit([2, 4, 8], [7, 9, 22])[2] > 0.1


def test_sizes_without_room_are_left_out(monkeypatch):
    monkeypatch.setattr(scale, "free_gib", lambda: 8.0)
    assert scale.no_room(4, scale.OWN) == ""
    assert "64 ranks are left out (matex_tf): they need 31 GiB, and 8 are free" in scale.no_room(64, scale.OWN)
    assert "they need 12 GiB" in scale.no_room(64, scale.WARM)


def test_a_page_says_what_a_cell_says():
    table = tables.Table("a < b", ["x"], [["<script>"]])
    part = bench_all.Outcome("step", "done", tables=[table.__dict__]).__dict__
    report = {"machine": tables.machine(), "load": 0, "begun": "today", "minutes": 1, "versions": {}, "parts": [part]}
    assert "<script>" not in page.html(report) and "a &lt; b" in page.html(report)
