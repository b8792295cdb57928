"""What shells complete: every option of every command, and the words that settings can be."""

import os
import pty
import select
import shutil
import subprocess
import time

import pytest
from there import case

from matex_tf.cli.main import commands, main
from matex_tf.errors import SettingError
from matex_tf.features.completion import command as completion

#: How bash calls a function of `complete -F`, but that `compopt` says what it does.
BY_HAND = r"""
compopt() { REPLIES+=("FILES"); }
for line in "$@"; do
    REPLIES=(); COMP_LINE=$line; COMP_POINT=${#line}
    _matex_tf
    printf '%s ' "${COMPREPLY[@]}" "${REPLIES[@]}"; echo
done
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("shell") / "matex-tf.bash"
    path.write_text(completion.bash())
    return path


def completed(script, *lines):
    done = subprocess.run(
        ["bash", "-c", f". {script}\n{BY_HAND}", "bash", *lines], capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return [set(line.split()) for line in done.stdout.splitlines()]


needs_bash = pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")


@needs_bash
def test_commands(script):
    assert completed(script, "matex-tf ")[0] == {*commands(), "--help", "--version"}
    assert completed(script, "matex-tf doc")[0] == {"doctor"}


@needs_bash
@pytest.mark.parametrize("command", [name for name in commands() if name != "completion"])
def test_every_option_of_a_command(script, command):
    """The whole table, so that none is lost; and the words of each that has some."""
    _, _, options = completion.tables()[command]
    assert {one.flag for one in options} <= completed(script, f"matex-tf {command} -")[0]
    some = [one for one in options if one.words and not one.files]
    for one, found in zip(some, completed(script, *(f"matex-tf {command} {one.flag}=" for one in some)), strict=True):
        assert found == set(one.words)


@needs_bash
@pytest.mark.parametrize(
    "line, expected",
    [
        ("matex-tf run --fil", {"--files"}),
        ("matex-tf run --files ", {"auto", "once", "private", "every-rank"}),
        ("matex-tf run --files pri", {"private"}),
        ("matex-tf run --files=on", {"once"}),
        ("matex-tf run --rows own --files pri", {"private"}),
        ("matex-tf run -n 4 --progr", {"--progress"}),
        ("matex-tf run -n 4 train.py --fil", {"FILES"}),
        ("matex-tf run --trace ", {"FILES"}),
        case("watch", "matex-tf top --on", {"--once"}),
        case("watch", "matex-tf top 4711 --on", {"--once"}),
    ],
)
def test_lines(script, line, expected):
    found = completed(script, line)[0]
    assert found == expected


@needs_bash
def test_the_script_is_completed_beside_options(script):
    found = completed(script, "matex-tf run -n 4 ")[0]
    assert {"FILES", "--files", "--seed"} <= found


@needs_bash
def test_in_a_terminal(script):
    """Bash itself, in a terminal: a tab completes the option, and another one its value."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(PS1="$ ", TERM="dumb")
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    try:
        os.write(terminal, f". {script}; echo READ''Y\n".encode())
        assert "READY" in said(terminal, "READY")
        os.write(terminal, b"matex-tf run --shard-lo\t")
        assert said(terminal, "--shard-loops ")
        os.write(terminal, b"of\t")
        assert said(terminal, "off ")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def said(terminal, due, most=30):
    """What came, up to a text."""
    found, end = "", time.monotonic() + most
    while due not in found and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            found += os.read(terminal, 4096).decode(errors="replace")
    assert due in found, found
    return found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(shell, tmp_path, capsys):
    """Each option is in it; the shell itself, if it is there, finds no fault in it."""
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for name, (_, _, options) in completion.tables().items():
        assert name in text
        for one in options:
            assert (one.flag if shell == "zsh" else f" {one.flag.lstrip('-')} ") in text, (name, one.flag)
    if shutil.which(shell):
        (tmp_path / "script").write_text(text)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
@pytest.mark.parametrize(
    ("line", "wanted"), [("doc", "doctor"), ("run --strat", "--strategy"), ("run --strategy goss", "gossip")]
)
def test_fish(line, wanted, tmp_path):
    """Fish itself completes commands, options and their values."""
    (tmp_path / "script").write_text(completion.fish())
    asked = f"source {tmp_path / 'script'}; complete -C 'matex-tf {line}'"
    done = subprocess.run(["fish", "--no-config", "-c", asked], capture_output=True, text=True, timeout=60)
    assert done.stdout.partition("\t")[0] == wanted, done


def test_a_shell_that_is_not_known():
    with pytest.raises(SettingError, match="takes one shell: bash or zsh or fish"):
        completion.command(completion.parser().parse(["csh"]))
