"""Command lines of all commands: both ways to give a value, what is refused, what is the script's, and the help."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from there import case, needs

from matex_tf import settings
from matex_tf.cli.main import commands, main
from matex_tf.errors import SettingError
from matex_tf.job import command_line

DOCS = Path(__file__).parents[2] / "docs"
#: A value for each kind of option that has no choices, by what its help says that it takes.
VALUES = {
    **{"N": "7", "H1:4,H2:4": "a:2,b:2", "RATE,TIME": "25Gbit,5us", "TIME": "5ms", "1K,1M,100M": "1K,2M"},
    **{"FILE": "f", "FILE.png": "f.png", "DIR": "d", "NAME": "HOME", "SECONDS": "2.5", "TEXT": "logs"},
}
PARSERS = {
    **{name: importlib.import_module(one.module).parser for name, one in commands().items()},
    "python": command_line.of_python,
}


def options():
    """Every option of every command that takes a value, and a value for it."""
    for name, make in PARSERS.items():
        for flag, action in make().known.items():
            if action.nargs is None and flag not in ("--trace",):
                shown = (action.metavar or "TEXT").strip("[]")
                yield pytest.param(name, flag, VALUES.get(shown) or shown.split("|")[0], id=f"{name} {flag}")


@pytest.mark.parametrize(("command", "flag", "value"), options())
def test_both_ways_to_give_a_value(command, flag, value, tmp_path, monkeypatch):
    """`--flag value` is `--flag=value`, of every option of every command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_text("a slots=2\n")
    parse = PARSERS[command]().parse
    apart, joined = parse([flag, value]), parse([f"{flag}={value}"])
    assert apart == joined
    assert vars(joined) != vars(parse([])) or value in ("global", "exact", "weak", "shared")


def test_flags_that_stand_alone():
    """The flag of what can be on means that, where no value of it follows."""
    parse = PARSERS["run"]().parse
    given = parse(
        ["--error-feedback", "--check", "-n", "2", "--watch", "no", "--require-sharing", "train.py", "--watch"]
    )
    assert given.flags == {"error_feedback": "on", "check": "on", "watch": "no", "require_sharing": "on"}
    assert given.rest == ["train.py", "--watch"] and given.ranks == 2
    assert parse(["--check", "auto", "--error-feedback", "-m", "on"]).flags == {"check": "auto", "error_feedback": "on"}
    assert parse(["--error-feedback"]).flags == parse(["--error-feedback=on"]).flags == {"error_feedback": "on"}
    with pytest.raises(SettingError, match="--strategy needs a value"):
        parse(["--strategy"])


@pytest.mark.parametrize("command", PARSERS)
def test_no_abbreviations(command):
    """A flag is its whole name; the error names the nearest."""
    flags = [flag for flag in PARSERS[command]().known if flag.startswith("--")] or ["--help"]
    with pytest.raises(SettingError, match=r"\(did you mean --"):
        PARSERS[command]().parse([flags[-1][:-1], "x"])
    with pytest.raises(SettingError):
        PARSERS[command]().parse(["-n4" if command != "doctor" else "-z"])


@pytest.mark.parametrize("command", ["run", case("plan", "plan"), "python"])
def test_what_is_the_scripts(command):
    """Options end at the script, at `-m` and at `--`; what follows is the script's, whatever it looks like."""
    parse = PARSERS[command]().parse
    for rest in (["train.py", "--seed", "9", "--help", "--", "-n", "3"], ["-m", "pkg", "--what", "--seed=9"]):
        given = parse(["--batch", "per-rank", "--seed=4", *rest])
        assert (given.flags, given.rest) == ({"batch": "per-rank", "seed": "4"}, rest)
        assert parse(["--seed", "4", "--", *rest]).rest == rest


def test_values_that_look_like_flags():
    """The word after a flag is its value, whatever it looks like; the last of two wins; `-x` adds up."""
    given = PARSERS["run"]().parse(["--seed", "-1", "--watch-dir", "--seed", "-x", "A", "-x=B", "--seed", "2", "s"])
    assert given.flags == {"seed": "2", "watch_dir": "--seed"} and given.names == ["A", "B"]


@needs("horovod")
def test_values_of_horovodrun_that_look_like_flags():
    given = PARSERS["horovodrun"]().parse(["--mpi-args", "--map-by ppr", "-np", "2", "python", "s"])
    assert (given.run, given.ignored, given.rest) == (["-n", "2"], ["--mpi-args"], ["python", "s"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--seed"], "--seed needs a value"),
        (["run", "--dry-run=yes", "s.py"], "--dry-run takes no value"),
        (["run", "--", "-s.py"], "-s.py cannot be the name of a script"),
        (["run", "--batch=odd", "s.py"], "--batch is 'odd'; it can be global or per-rank"),
        case("bench", ["bench", "allreduce", "--repeat=0"], "--repeat is '0'; it must be a whole number, 1 or more"),
        case("bench", ["bench", "--repeat=2", "allreduce", "--sizes=1K,x"], "--sizes has 'x'"),
        case("bench", ["bench", "allreduce", "--json=nowhere/x.json"], "nowhere"),
        case("bench", ["bench", "--repeat", "2"], "no exchange was named: matex-tf bench allreduce"),
        case("bench", ["bench", "allreduce", "allgather"], "no allgather"),
        case("plan", ["plan", "--steps=2", "s.py"], "5 or more"),
        case("trace", ["trace", "--png=x.png"], "there is no timeline to read"),
        case("trace", ["trace", "x.json", "y.json"], "takes no y.json"),
        (["doctor", "now"], "takes no now"),
        case("horovod", ["horovodrun", "--slots-per-host", "2", "python", "s.py"], "give the slots of each host to -H"),
        case("horovod", ["horovodrun", "--slots-per-host=2", "python", "s.py"], "give the slots of each host to -H"),
        case("horovod", ["horovodrun", "-cb"], "matex-tf doctor says what there is"),
        case("horovod", ["horovodrun", "--instal"], "(did you mean --install?)"),
    ],
)
def test_refused(words, message, capsys):
    """One clear message, exit code 2."""
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("matex-tf: error: ") and message in said and said.count("\n") == 1


def test_help_of_a_command(capsys):
    """`matex-tf help run` is `matex-tf run --help`; without a command there is the overview."""
    said = []
    for words in (["help", "run"], ["run", "--help"], ["help"], ["--help"]):
        assert main(words) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] and said[2] == said[3] != said[0]
    assert main(["help", "runn"]) == 2
    assert "there is no command and no page runn (did you mean run?)" in capsys.readouterr().err


@pytest.mark.parametrize("command", PARSERS)
def test_help(command, capsys):
    """Groups of lines that fit, no option twice, at the end the page that says more, and that is there."""
    assert PARSERS[command]().parse(["--help"]) is None
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= command_line.WIDTH
    assert "\n".join(lines).count("\n" + 20 * " ") <= 2 * len([line for line in lines if line.startswith("  -")])
    shown = [word.rstrip(",") for line in lines if line.startswith("  -") for word in line.split("  ")[1].split(" ")]
    names = [word for word in shown if word.startswith("-")]
    assert len(names) == len(set(names))
    assert (
        lines[-1].startswith("More: docs/")
        and (DOCS / lines[-1].split("/")[1].split(".md")[0]).with_suffix(".md").exists()
    )
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles or command == "doctor"
    if command in ("run", "python"):
        for title, page, options in settings.by_group():
            assert f"{title} ({page}):" in titles and options
            assert (DOCS.parent / page).exists()
            assert {option.flag for option in options} <= set(names)


def test_help_in_short(capsys):
    """`-h` shows the settings that are used most, on a screen, and says how to see all; no setting goes astray."""
    assert {option.name for group in settings.by_group() for option in group.options} >= command_line.MOST_USED
    assert main(["run", "-h"]) == 0
    said = capsys.readouterr().out
    assert said.count("\n") < 60 and "  --faults " in said and "--unpack-ratio" not in said
    assert "matex-tf run --help lists all " in said
    assert main(["doctor", "-h"]) == 0
    assert "lists all" not in capsys.readouterr().out


def test_help_among_other_flags(capsys):
    """It is shown wherever it stands before the script, and is the script's after it."""
    assert main(["run", "-n", "2", "-h"]) == 0 and main(["doctor", "--help"]) == 0
    assert capsys.readouterr().out.count("usage: ") == 2
    assert PARSERS["run"]().parse(["-n", "2", "--help", "s.py"]) is None
    assert capsys.readouterr().out.count("usage: ") == 1
    assert PARSERS["run"]().parse(["s.py", "--help"]).rest == ["s.py", "--help"]


NEED_WORDS = [case(*one) for one in (("bench",) * 2, ("plan",) * 2, ("trace",) * 2, ("horovod", "horovodrun"))]


@pytest.mark.parametrize("command", ["run", *NEED_WORDS])
def test_no_words(command, capsys):
    """A command that needs words shows its help, or says what is missing."""
    assert main([command]) == 2
    said = capsys.readouterr()
    assert "there is no script to run" in said.err if command == "run" else said.out.startswith("usage: matex-tf")


def test_help_that_nobody_reads():
    """No complaint of Python's, of either way to start."""
    for launcher in ("matex_tf.cli.main import main; sys.exit(main(['run', '--help']))",
                     "matex_tf.job.run import main; sys.exit(main(['--help']))"):  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.stdin.read(); from {launcher}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.close()
        assert process.communicate()[1] == b"" and process.returncode == 141


def test_light():
    """Settings, the command and the command line of `run` need neither numpy nor TensorFlow."""
    code = (
        "import sys, matex_tf.settings, matex_tf.cli.main, matex_tf.cli.run as run\n"
        "run.parser().parse(['-n', '2', 's.py'])\n"
        "print([name for name in ('numpy', 'tensorflow', 'mpi4py', 'rich') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
