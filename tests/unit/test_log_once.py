"""The lines of matex_tf, beside what takes down what a script prints."""

from __future__ import annotations

import contextlib
import io
import sys

from matex_tf.patches.common import log_once


def test_trackers_do_not_take_them_down(capfd, monkeypatch):
    """W&B puts a method of its own into `sys.stderr`, ClearML a stream around it."""
    taken: list[str] = []
    monkeypatch.setattr(sys.stderr, "write", taken.append)
    log_once.log("a line", " of this test")
    print("of the script", file=sys.stderr)
    assert capfd.readouterr().err == "matex_tf: a line of this test\n" and "of the script" in taken


def test_what_is_in_memory_gets_them():
    """A stream that is no file, such as a test's, has no other way to it."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        log_once.log("another line of this test")
    assert said.getvalue() == "matex_tf: another line of this test\n"
