"""The last lines of a job that has failed."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import wrapt
from jobs import LAUNCHER, Job

from matex_tf.job import tracebacks
from matex_tf.launch.output_filter import OutputFilter

FRAME = "-" * 74 + "\n"
ABORT = f"""{FRAME}MPI_ABORT was invoked on rank 0 in communicator MPI COMM 3 DUP FROM 0
  Proc: [[41365,1],0]
  Errorcode: 1

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
You may or may not see output from other processes, depending on
exactly when Open MPI kills them.
{FRAME}"""
EXITED = f"""{FRAME}prterun has exited due to process rank 0 with PID 0 on node vm calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
{FRAME}"""
KILLED = f"""{FRAME}prterun noticed that process rank 1 with PID 6 on node vm exited on signal 9 (Killed).
{FRAME}"""
REPORT = "matex_tf: rank 1 of 3 on vm failed:\nTraceback (most recent call last):\nValueError: boom\n"


def through(text: str, parts: int) -> str:
    """A text that goes through in so many parts."""
    quiet, data, out = OutputFilter(), text.encode(), b""
    cuts = sorted(random.Random(parts).sample(range(1, len(data)), min(parts, len(data)) - 1))
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        out += quiet(data[begin:end])
    return (out + quiet(b"", last=True)).decode()


@pytest.mark.parametrize("parts", [1, 2, 10, 100, 300])
def test_what_is_left_out(parts):
    """Notices of an abort after a report; nothing without one, nothing else, and no line that stands in between."""
    assert through("before\n" + REPORT + ABORT + "\0" + EXITED + "after", parts) == "before\n" + REPORT + "after"
    for text in ("line\n" + ABORT + EXITED, REPORT + KILLED, FRAME + FRAME + "x\n" + FRAME, REPORT + "no end"):
        assert through(text * 3, parts) == text * 3
    between = ABORT.replace("  Errorcode", "a word of another rank\n  Errorcode")
    assert through(REPORT + between, parts) == REPORT + "a word of another rank\n"


@pytest.mark.parametrize("parts", [1, 2, 10, 300])
def test_ranks_that_end_after_those_that_have_started_them(parts):
    """What PRRTE says of them has no end of line; where it stands in a line of somebody else, it is left."""
    lost = "LAUNCHER JOB OBJECT NOT FOUND"
    assert through(f"before\n{lost}after\n{lost}{lost}", parts) == "before\nafter\n"
    assert through(f"of {lost}\nLAUNCHER\n", parts) == f"of {lost}\nLAUNCHER\n"


@pytest.mark.parametrize("parts", [1, 2, 10, 65, 100])
def test_an_interrupt(parts):
    """Ctrl-C comes to mpirun and to the launcher, and mpirun offers to be interrupted again."""
    offer = "Abort is in progress...hit ctrl-c again to forcibly terminate\n\n"
    assert through(f"before\n{offer}after\nAbort\n", parts) == "before\nafter\nAbort\n"


def test_a_line_without_an_end_is_shown_at_once():
    """A prompt does not wait for its answer."""
    quiet = OutputFilter()
    assert quiet(b"a line\nhow many? ") == b"a line\nhow many? "
    assert quiet(b"\n---") == b"\n" and quiet(b" so\n") == b"--- so\n"


def test_the_last_line_is_the_cause(tmp_path):
    """Of an error that has more than one line too."""
    (tmp_path / "script.py").write_text(
        "import matex_tf\nworld = matex_tf.init()\nworld.barrier('begin')\n"
        "if world.rank == 1:\n    raise ValueError('boom\\nin two lines')\nworld.barrier('end')\n"
    )
    ended = Job([LAUNCHER, "run", "-n", "2", "script.py"], tmp_path).end()
    assert ended.code == 1 and "MPI_ABORT" not in ended.err and "prterun" not in ended.err, ended
    assert ended.err.splitlines()[-1].endswith("failed: ValueError: boom in two lines"), ended


def test_frames_of_ours_are_left_out(tmp_path):
    """Of a traceback, of what led to it, and of what a message quotes; not of an error that is all ours."""
    ours, other = Path(tracebacks.__file__), tmp_path / "script.py"
    patch = Path(__file__).resolve().parents[2] / "patches" / "common" / "wrapping.py"
    quoted = (
        f'  in user code:\n\n    File "{other}", line 5, in step  *\n        f(x)\n    File "{ours}", line 9, in g\n'
    )
    text = (
        f'Traceback (most recent call last):\n  File "{ours}", line 1, in f\n    g()\n    ^^^\nKeyError: 1\n\n'
        f'During handling of it:\n\nTraceback (most recent call last):\n  File "{other}", line 3, in <module>\n'
        f'    h()\n  File "{patch}", line 2, in h\n    raise\n  File "{wrapt.__file__}", line 2, in w\n'
        f'    a\n  File "{other}", line 7, in i\n    b\nValueError: {quoted}\n    no\n'
    )
    short = tracebacks.without_ours(text)
    assert str(ours) not in short and "wrapping.py" not in short and "wrapt" not in short and "^^^" not in short
    assert [word in short for word in ("KeyError: 1", "line 3", "h()", "line 7", "line 5", "f(x)", "    no\n")] == [
        True
    ] * 7
    all_ours = f'Traceback (most recent call last):\n  File "{ours}", line 1, in f\nKeyError: 1\n'
    assert tracebacks.without_ours(all_ours) == all_ours


def test_an_error_of_the_script(tmp_path):
    """Its own frame and Keras' alone, the whole message in the last line; `--traceback full` shows all frames."""
    (tmp_path / "script.py").write_text(
        "import keras, numpy as np\n"
        "m = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)]); m.compile('sgd', 'mse')\n"
        "m.fit(np.ones((30, 3)), np.ones((29, 1)), verbose=0)\n"
    )
    short, full = (
        Job([LAUNCHER, "run", "-n", "2", *flags, "script.py"], tmp_path).end()
        for flags in ([], ["--traceback", "full"])
    )
    assert short.code == full.code == 1
    assert "patches/" in full.err and "patches/" not in short.err and "script.py" in short.err, short
    last = short.err.splitlines()[-1]
    assert last == full.err.splitlines()[-1] and "'x' sizes: 30" in last and "'y' sizes: 29" in last, last


CLAIM = """
import sys
from matex_tf.job import finalize
print(finalize.claim(ValueError("boom")), finalize.claim(ValueError("another")), flush=True)
sys.stdin.read()
"""


def test_an_error_of_every_rank_is_reported_once():
    """By the first rank of a node that comes to it; another error has a report of its own, and so has another job."""
    environ = {**os.environ, "PMIX_NAMESPACE": f"a test {os.getpid()}"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    first = subprocess.Popen([sys.executable, "-c", CLAIM], env=environ, **pipes)
    try:
        assert first.stdout.readline() == "True True\n"
        later = CLAIM.replace("another", "a third")
        second = subprocess.run([sys.executable, "-c", later], env=environ, input="", capture_output=True, text=True)
        assert second.stdout == "False True\n", second
        environ["PMIX_NAMESPACE"] += " and another job"
        third = subprocess.run([sys.executable, "-c", CLAIM], env=environ, input="", capture_output=True, text=True)
        assert third.stdout == "True True\n", third
    finally:
        first.communicate("")
