"""Takes out of what mpirun says what follows from an error that a rank has reported in words already.

Where a rank ends the job with MPI_Abort, Open MPI adds fifteen lines, of which none says why, and mpirun names "PID 0";
MPICH and Intel MPI add one.
The last lines of a job shall be the reason. Where no rank has reported one, all is left.
"""

from __future__ import annotations

import re

_REPORT = re.compile(rb"matex_tf: (?:error: |rank \d+ of \d+ on \S+(?: failed:|: sys\.exit\()|the checkpoint of )")
_FRAME = b"-" * 74
#: What PRRTE 3 says, without an end of line, where the ranks of `matex-tf join` end after those that have started them
#: (it looks for whom to tell, and means that they have ended), and at Ctrl-C, which comes to it and to the launcher.
_NOISE = (b"LAUNCHER JOB OBJECT NOT FOUND", b"Abort is in progress...hit ctrl-c again to forcibly terminate\n\n")
_TOLD = b"matex_tf: "

#: A rank comes to the job, or was to come: from there on a rank that mpirun has not started itself ends by a signal.
_COMES = re.compile(rb"matex_tf: a (?:rank on \S+ has joined|joining rank)")
_KILLED = re.compile(rb"(?:prterun|mpirun\S*) noticed that process rank \d+ with PID \d+ on node \S+ exited on")

#: The first line of a notice, which stands between two frames (Open MPI 4 and 5).
_FIRST = re.compile(
    rb'MPI_ABORT was invoked on rank |(?:prterun|mpirun\S*) has exited due to process rank \d+ .*(?:calling|"abort")'
)
#: The others. What ranks print at the same time may stand between them, and is none of it.
_REST = re.compile(
    rb"(?: *|signal 9 \(Killed\)\.|  Proc: \[\[.*"
    rb"|(?:  Errorcode: |with errorcode )-?\d+\.?|NOTE: invoking MPI_ABORT causes Open MPI .*"
    rb"|You may or may not see output from other processes, depending on|exactly when Open MPI kills them\."
    rb'|"abort"\. This may have caused other processes in the application to be|terminated by signals sent by .*'
    rb"|You can avoid this message by specifying -quiet .*)"
)
_MORE = re.compile(
    rb"\[.*\] ORTE_ERROR_LOG: .* in file \S*/show_help\.c at line \d+"  # Open MPI 4 cannot even show its notice
    rb"|Abort\(\d+\) on node \d+ \(rank .*: application called MPI_Abort\(.*"  # of MPICH and Intel MPI, a single line
    rb"|\[.*\] .*help message help-mpi-api\.txt / mpi.abort|\[.*\] .*help-mpi-api\.txt.*mpi-abort"
)


def _cut(data: bytes) -> tuple[bytes, bytes, bytes]:
    """The first line, its end and the rest; a carriage return ends one too: a progress line is written over."""
    place = next((place for place in sorted((data.find(b"\n"), data.find(b"\r"))) if place >= 0), len(data))
    return data[:place], data[place : place + 1], data[place + 1 :]


class OutputFilter:
    """Goes through a stream part by part."""

    def __init__(self) -> None:
        self._reported = self._comes = False
        self._framed = False  # the line before was a frame, which is kept back
        self._inside = False  # a notice
        self._begun = False  # the beginning of this line has gone out
        self._kept = b""

    def __call__(self, data: bytes, last: bool = False) -> bytes:
        """What to hand on.

        Args:
            data: the next part; the beginning of a line that may have to be left out is kept back until more is known.
            last: whether none comes after it.
        """
        data, self._kept, out = self._kept + data, b"", b""
        while data:
            if not self._begun and (noise := next(filter(data.startswith, _NOISE), b"")):
                data = data[len(noise) :]
                continue
            if not self._begun and not last and any(noise.startswith(data) for noise in _NOISE):
                self._kept = data
                break
            line, end, data = _cut(data)
            if self._begun:
                out, self._begun = out + line + end, not end
            elif end:
                out += self._line(line + end)
            elif self._undecided(line) and not last:
                self._kept = line
            else:
                out, self._begun = out + self._line(line), True
        if last and self._framed:
            out, self._framed = out + _FRAME + b"\n", False
        return out

    def _undecided(self, line: bytes) -> bool:
        """Whether the beginning of a line may be that of one to leave out, or to remember."""
        if self._framed or self._inside or (self._reported and line[:1] in (b"[", b"\0", b"A")):
            return True
        return any(whole.startswith(line[: len(whole)]) for whole in (_FRAME, _TOLD))

    def _line(self, line: bytes) -> bytes:
        text = line.strip(b"\r\n\0")  # Open MPI 5 ends its notices with a zero
        self._reported |= _REPORT.match(text) is not None
        self._comes |= _COMES.match(text) is not None
        if self._inside:
            if text == _FRAME:
                self._inside = False
                return b""
            return b"" if _REST.fullmatch(text) else line
        if self._framed:
            self._framed = False
            if (self._reported and _FIRST.match(text)) or (self._comes and _KILLED.match(text)):
                self._inside = True
                return b""
            if text == _FRAME:
                self._framed = True
                return line
            return _FRAME + b"\n" + line
        if text == _FRAME:
            self._framed = True
            return b""
        of_a_notice = not line.strip(b"\0") or _MORE.match(text)
        return b"" if self._reported and of_a_notice else line
