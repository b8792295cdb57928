"""A server of `matex-tf label` in a process of its own, and images for it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np


class Running:
    """A server in a process of its own, which runs the statements of `before` first."""

    def __init__(self, folder, words, before=""):
        line = [
            sys.executable,
            "-c",
            f"{before}\nimport sys; from matex_tf.cli.main import main; sys.exit(main(sys.argv[1:]))",
            "label",
        ]
        self.process = subprocess.Popen(
            [*line, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said = []
        for text in self.process.stdout:
            self.said.append(text)
            if "Open this page" in text:
                self.url = text.split()[-1]
            if "Ctrl-C" in text:
                break
        assert hasattr(self, "url"), self.said
        self.base, self.token = self.url.split("/?token=")
        self._reader = threading.Thread(target=lambda: self.said.extend(self.process.stdout), daemon=True)
        self._reader.start()

    def ask(self, path, said=None):
        data = None if said is None else json.dumps(said).encode()
        headers = {"authorization": f"token {self.token}", "content-type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.base + path, data, headers), timeout=60) as answer:
            return json.load(answer)

    def until(self, true, seconds=240):
        end = time.monotonic() + seconds
        while not true(shown := self.ask("/api/all")):
            assert time.monotonic() < end and self.process.poll() is None, (shown["training"], "".join(self.said))
            assert shown["training"]["state"] != "failed", shown["training"]["text"]
            time.sleep(0.05)
        return shown

    def stop(self, how=signal.SIGINT):
        self.process.send_signal(how)
        code = self.process.wait(60)
        self._reader.join()
        return code


def own_port():
    """A port that the servers of other workers leave alone: they look from 8765 on. A server that is started again
    without `--port` must find it free."""
    return f"{9000 + int(os.environ.get('PYTEST_XDIST_WORKER', 'gw0')[2:])}"


def discs(count=120):
    """Discs and squares of 12 pixels, and which is which."""
    chance = np.random.default_rng(0)
    kind = chance.integers(0, 2, count)
    y, x = np.mgrid[:12, :12] - 5.5
    size = chance.uniform(2.5, 4.5, count)
    far = np.where(kind[:, None, None] == 0, np.hypot(x, y)[None], np.maximum(abs(x), abs(y))[None])
    images = np.where(far < size[:, None, None], 200, 40) + chance.integers(0, 40, (count, 12, 12))
    return images.astype(np.uint8), kind
