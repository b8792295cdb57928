"""How long the page of `matex-tf label` waits for suggestions: a server with its ranks, and an oracle for people."""

from __future__ import annotations

import http.client
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

from benchmarks import tables
from matex_tf.features.label import boundary

_EACH = 40  # labels that the oracle gives at once
_PATIENCE = 300  # seconds without any news, after which something is wrong


class Page:
    """What a browser would be: asks, and hears the news."""

    def __init__(self, folder: str, words: list[str]):
        main = "import sys; from matex_tf.cli.main import main; sys.exit(main(sys.argv[1:]))"
        line = [sys.executable, "-c", main, "label", *words]
        self.process = subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        url = next(text.split()[-1] for text in self.process.stdout if "Open this page" in text)
        self._host, _, token = url.removeprefix("http://").partition("/?token=")
        self._headers = {"authorization": f"token {token}", "content-type": "application/json"}
        self._news: queue.Queue[tuple[float, dict[str, Any]]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, path: str, said: dict[str, Any] | None = None) -> Any:
        link = http.client.HTTPConnection(self._host, timeout=60)
        body = None if said is None else json.dumps(said)
        link.request("POST" if body else "GET", path, body, self._headers)
        return json.load(link.getresponse())

    def _listen(self) -> None:
        link = http.client.HTTPConnection(self._host, timeout=_PATIENCE)
        link.request("GET", "/api/events", headers=self._headers)
        for line in link.getresponse():
            if line.startswith(b"data:"):
                self._news.put((time.monotonic(), json.loads(line[5:])))

    def news(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """What is new, and when it came."""
        while True:
            at, news = self._news.get(timeout=_PATIENCE)
            if news.get("training", {}).get("state") == "failed":
                raise RuntimeError(news["training"]["text"])
            yield at, news


def measure(path: Path, ranks: int, rounds: int, more: list[str]) -> list[dict[str, float]]:
    """Of each round the seconds from labels to the first suggestions, and to the last ones.

    Args:
        path: an HDF5 file of images, and their labels.
    """
    with h5py.File(path) as file:
        kind = file["labels"][:].tolist()
    names = ",".join(f"kind {number}" for number in range(max(kind) + 1))
    begun = time.monotonic()
    page = Page(str(path.parent), [path.name, "--classes", names, "--dataset", "images", "-n", str(ranks), *more])
    try:
        news = page.news()
        found: list[dict[str, float]] = []
        labelled = 0
        for number in range(1, rounds + 1):
            known = page.ask("/api/all")
            free = [image for image in known["queue"] if known["labels"][image] == -2][:_EACH]
            at = time.monotonic()
            for group in sorted({kind[image] for image in free}):
                some = [image for image in free if kind[image] == group]
                page.ask("/api/act", {"kind": "assign", "person": "oracle", "images": some, "group": group + 1})
            labelled += len(free)
            given = time.monotonic()
            figures: dict[str, float] = {"round": number, "labels": labelled}
            on = False  # whether what comes was made with all labels
            for came, one in news:
                training = one.get("training")
                if training and training["state"] in ("starting", "training"):
                    on = on or training.get("labelled") == labelled
                elif one.get("type") == "round" and on:
                    figures.setdefault("first", came - given)
                    figures["last"] = came - given
                elif training and training["state"] == "waiting" and "first" in figures:
                    break
            figures["labels given"], figures["since start"] = given - at, came - begun
            print(f"round {number}: {figures}", file=sys.stderr, flush=True)
            found.append(figures)
        return found
    finally:
        page.process.terminate()
        page.process.wait(60)


def parts(path: Path) -> dict[str, float]:
    """Seconds of what the server does with an answer: the map, and the choice of what is asked."""
    import numpy as np

    with h5py.File(path) as file:
        count = len(file["labels"])
    chance = np.random.default_rng(0)
    features, said = chance.normal(size=(count, 64)), chance.dirichlet([0.1, 0.1], count)
    begin = time.perf_counter()
    boundary.plane(features)
    middle = time.perf_counter()
    boundary.ask("margin", 200, np.arange(count // 2, count), np.arange(count // 2), said, features)
    return {"map": middle - begin, "queue": time.perf_counter() - middle}


def report(path: Path, ranks: int, rounds: int, more: list[str]) -> None:
    """Measure, and print."""
    found, of_server = measure(path, ranks, rounds, more), parts(path)
    rows = [
        [f"{one['round']:.0f}", f"{one['labels']:.0f}", f"{one['first']:.1f}", f"{one['last']:.1f}"] for one in found
    ]
    note = f"{ranks} ranks; in it the map takes {of_server['map']:.2f} s, the queue {of_server['queue']:.2f} s"
    tables.show("seconds from labels to suggestions", ["round", "labels", "first", "last"], rows, note=note)
    tables.keep({"rounds": found, "server": of_server})
