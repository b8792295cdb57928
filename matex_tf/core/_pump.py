"""A process of its own that puts a prefix before each line of a rank's output.

Run by path, without the package: `python -I -S _pump.py PREFIX OUT_IN OUT_TO ERR_IN ERR_TO`, file descriptors all. A
process and not a thread, so that what a rank printed before it crashed is still shown. Ends when the rank has.
"""

import os
import selectors
import sys

LONGEST_LINE = 1 << 16


def main(prefix: bytes, pairs: "list[tuple[int, int]]") -> None:
    """Copy lines from the first of each pair to the second until all have ended."""
    waiting = selectors.DefaultSelector()
    held = {}
    for source, target in pairs:
        waiting.register(source, selectors.EVENT_READ, target)
        held[source] = b""
    while held:
        for key, _ in waiting.select():
            data = os.read(key.fd, 1 << 16)
            text = held[key.fd] + data
            lines, _, rest = text.rpartition(b"\n")
            if data and len(rest) < LONGEST_LINE:
                held[key.fd] = rest
            else:
                lines, _ = text.removesuffix(b"\n"), held.update({key.fd: b""})
            if lines or b"\n" in text:
                write(key.data, b"".join(prefix + line + b"\n" for line in lines.split(b"\n")))
            if not data:
                waiting.unregister(key.fd)
                del held[key.fd]


def write(target: int, data: bytes) -> None:
    """Write it all; where nobody reads any more, drop it."""
    try:
        while data:
            data = data[os.write(target, data) :]
    except OSError:
        return


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[2:6]]
    main(sys.argv[1].encode(), [(numbers[0], numbers[1]), (numbers[2], numbers[3])])
