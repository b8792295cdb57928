"""Standard streams that are closed or piped, and scripts that come by them: as with Python."""

import subprocess
import sys

import pytest
from jobs import LAUNCHER

pytestmark = pytest.mark.timeout(100)

#: Says what it finds in files of its own, one for each rank: where it prints to may be closed.
SCRIPT = """
import os, sys
with open("report." + os.environ.get("OMPI_COMM_WORLD_RANK", "0"), "w") as report:
    print([stream is None for stream in (sys.stdin, sys.stdout)], sys.argv, file=report)
    print(sys.stdin and sys.stdin.read() if os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0" else "", file=report)
print("printed", __name__, globals().get("__file__", "no file"), sys.path[0] == "")
"""

#: In the shell; RUN is Python, or the launcher.
LINES = (
    "RUN script.py a b <&-",
    "RUN script.py >&-",
    "RUN script.py 2>&-",
    "RUN script.py <&- >&- 2>&-",
    "RUN script.py </dev/null",
    "echo given | RUN script.py",
    "(read first; RUN script.py) < script.py",
    "cat script.py | RUN - a -b",
    "RUN - < script.py",
    "cat script.py | RUN /dev/stdin a",
    "RUN /dev/stdin < script.py",
    "RUN <(cat script.py) a",
    'RUN -c "$(cat script.py)" a --seed=1',
    "RUN -c 'raise SystemExit(3)'",
    "echo 'import sys; sys.exit(4)' | RUN -",
    "echo 'print(1' | RUN - 2>/dev/null",
)


@pytest.mark.variants(6)
@pytest.mark.parametrize("line", LINES)
def test_as_with_python(line, tmp_path):
    """What is printed, how it ends, and what the script finds are the same; on every rank."""
    ended, said = [], []
    for number, run in enumerate((sys.executable, f"{LAUNCHER} run -n 2")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "script.py").write_text(SCRIPT)
        ended.append(
            subprocess.run(
                ["bash", "-c", line.replace("RUN", run)], cwd=folder, capture_output=True, text=True, timeout=90,
                stdin=subprocess.DEVNULL,
            )
        )  # fmt: skip
        said.append([path.read_text() for path in sorted(folder.glob("report.*"))])
    shown = [one.stdout.replace("/0/", "/1/") for one in ended]
    assert (ended[1].returncode, shown[1]) == (ended[0].returncode, shown[0]), ended[1].stderr
    assert said[1][:1] == said[0]
    assert [text.partition("\n")[0] for text in said[1]] == [text.partition("\n")[0] for text in said[0]] * 2


def test_files_of_such_a_script(tmp_path):
    """The calls of a script that is in no file are its own: each is done once."""
    line = f'echo \'import os; os.system("echo ran >> log"); open("new", "a").write("x")\' | {LAUNCHER} run -n 2 -'
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "log").read_text() == "ran\n"
    assert (tmp_path / "new").read_text() == "x"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("LAUNCHER run -n 2 train.ipynb", "jupyter nbconvert --to script train.ipynb"),
        ("PYTHON -m matex_tf train.ipynb", "jupyter nbconvert --to script train.ipynb"),
        ("head -c 200000 /dev/urandom | base64 | LAUNCHER run -n 2 -", "too long to be sent"),
        ("script -qec 'LAUNCHER run -n 2 -' /dev/null", "would have to be typed in"),
        ("echo 1 | PYTHON -m matex_tf -", "only matex-tf run can hand"),
    ],
)
def test_what_cannot_be_run(line, words, tmp_path):
    """A line says what to do."""
    (tmp_path / "train.ipynb").write_text('{"cells": [{"outputs": null}]}')
    (tmp_path / "train.py").write_text("pass\n")
    line = line.replace("LAUNCHER", LAUNCHER).replace("PYTHON", sys.executable)
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert words in ended.stderr + ended.stdout, ended


#: Runs the launcher on a terminal, and says in how many pieces the words came that the script writes one by one.
ON_A_TERMINAL = """
import os, pty, sys
process, terminal = pty.fork()
if not process:
    os.execvp(sys.argv[1], sys.argv[1:])
seen = b""
for number in range(3):
    while b"word %d" % number not in seen:
        seen += os.read(terminal, 10000)
    assert b"word %d" % (number + 1) not in seen
    open(f"seen.{number}", "w").close()  # or the script does not write the next one
try:
    while part := os.read(terminal, 10000):
        seen += part
except OSError:
    pass
sys.stdout.buffer.write(seen)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""

WORDS = """
import os, sys, time
print("a terminal:", sys.stdout.isatty(), flush=True)
for number in range(3):
    os.write(DESCRIPTOR, b"\\rword %d" % number)
    while os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0" and not os.path.exists(f"seen.{number}"):
        time.sleep(0.01)
"""


@pytest.mark.parametrize("ranks", ["1", "2"])
@pytest.mark.parametrize("descriptor", ["1", "2"])
def test_what_is_no_whole_line(ranks, descriptor, tmp_path):
    """A progress bar, a question: it comes at once, and not with the end of its line."""
    (tmp_path / "script.py").write_text(WORDS.replace("DESCRIPTOR", descriptor))
    line = [sys.executable, "-c", ON_A_TERMINAL, LAUNCHER, "run", "-n", ranks, "script.py"]
    ended = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "a terminal: True" in ended.stdout
    assert [ended.stdout.count(f"word {number}") for number in range(3)] == [1, 1, 1]
