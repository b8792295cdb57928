"""The last lines of a job that has failed."""

import random

import pytest
from jobs import LAUNCHER, Job

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
    assert ended.err.splitlines()[-1].endswith("failed: ValueError: boom"), ended
