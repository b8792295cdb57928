"""Labels some images at a server of `matex-tf label`, waits for suggestions, and says what its ranks have said of
themselves: label_rounds.py OPTIONS. For hosts on which no test runs."""

import signal
import sys
from pathlib import Path

import numpy as np
from label_server import Running, discs

images, kind = discs()
np.save("x.npy", images)
words = ["x.npy", "--classes", "disc,square", "--steps", "20", "--size", "12", "--augment", "shift", *sys.argv[1:]]
running = Running(Path.cwd(), words)
for group in (0, 1):
    some = [int(image) for image in np.flatnonzero(kind == group)[:10]]
    running.ask("/api/act", {"kind": "assign", "person": "ann", "images": some, "group": group + 1})
running.until(lambda shown: shown["suggested"] and shown["training"]["state"] == "waiting")
printed = next(Path.cwd().glob(".matex-label-*")) / "printed"
print(*[line for line in printed.read_text().splitlines() if " ranks on " in line], sep="\n")
print("ended with", running.stop(signal.SIGINT), flush=True)
