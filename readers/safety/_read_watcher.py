"""A process of its own that watches another one read files: says that a read does not end, and gives it up.

Run by path, without the package:
`python -I -S _read_watcher.py MEMORY STALL ABORT SPINNING WHO`: a descriptor of the memory of `read_watch.py`, seconds.
Lines go to standard error. Ends when the other process has: its standard input is a pipe from there.
"""

import mmap
import os
import select
import signal
import struct
import sys
import time

SLOT = struct.Struct("dqq1000s")  # as in read_watch.py, which this process cannot import
LONGEST_PAUSE = 1.0


class Watch:
    """What is known of the units of work of a process."""

    def __init__(self, memory: mmap.mmap, stall: float, abort: float, spinning: float, who: str):
        self._memory, self._who = memory, who
        self._stall, self._abort, self._spinning = stall, abort, spinning
        self._process = os.getppid()
        self._seen: dict[int, tuple[float, float, bool]] = {}  # of a slot: since when, CPU seconds then, whether said
        given = [seconds for seconds in (stall, abort, spinning) if seconds]
        self.pause = min(LONGEST_PAUSE, min(given) / 4)

    def look(self) -> None:
        """Look at every unit of work that is under way, and do what is due."""
        for slot in range(len(self._memory) // SLOT.size):
            at = slot * SLOT.size
            since, thread, length, raw = SLOT.unpack_from(self._memory, at)
            if not since or SLOT.unpack_from(self._memory, at)[0] != since:
                self._seen.pop(slot, None)
                continue
            cpu = cpu_seconds(self._process, thread)
            begun, before, said = self._seen.get(slot, (0.0, 0.0, False))
            if begun != since:
                before, said = cpu, False
            seconds, computed = time.monotonic() - since, cpu - before
            what = f"{raw[:length].decode(errors='replace')} by {self._who} for {seconds:.0f} s so far"
            # A thread that waits computes nothing; one that computes may have to share its core.
            how = "it computes: the file is damaged" if computed > seconds / 20 else "it waits for the file system"
            then = (
                f"the job ends after {self._abort:g} s" if self._abort else "--stall-abort-seconds N ends it after N s"
            )
            if self._abort and seconds >= self._abort:
                self._give_up(f"{what} ({how}), which counts as dead (--stall-abort-seconds)")
            if computed >= self._spinning:
                self._give_up(
                    f"{what}, with {computed:.0f} s of computing: the file is damaged, and is given up"
                )
            if self._stall and seconds >= self._stall and not said:
                said = True
                self._say(f"{what} ({how}); {then}")
            self._seen[slot] = since, before, said

    def last_words(self) -> None:
        """Say what the other process was reading when it ended: a library can crash on a damaged file."""
        for slot in range(len(self._memory) // SLOT.size):
            since, _, length, raw = SLOT.unpack_from(self._memory, slot * SLOT.size)
            if since:
                what = raw[:length].decode(errors="replace").replace(" is being ", " was being ", 1)
                self._say(f"{what} by {self._who} when its process ended: if nothing killed it, the file is damaged")

    def _give_up(self, why: str) -> None:
        """End the other process: a thread that is in a library cannot be made to leave it."""
        self._say(f"error: {why}.")
        time.sleep(0.2)  # for the launcher to pass on what was said
        if os.getppid() == self._process:
            os.kill(self._process, signal.SIGKILL)
        sys.exit()

    def _say(self, line: str) -> None:
        try:
            os.write(2, f"matex_tf: {line}\n".encode(errors="replace"))
        except OSError:
            return  # nobody reads any more


def cpu_seconds(process: int, thread: int) -> float:
    """What a thread has computed so far; 0 where the system does not say."""
    try:
        with open(f"/proc/{process}/task/{thread}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def main() -> None:
    """Watch until the other process ends."""
    stall, abort, spinning = map(float, sys.argv[2:5])
    watch = Watch(mmap.mmap(int(sys.argv[1]), 0, prot=mmap.PROT_READ), stall, abort, spinning, sys.argv[5])
    while not select.select([0], [], [], watch.pause)[0]:
        watch.look()
    watch.last_words()


if __name__ == "__main__":
    main()
