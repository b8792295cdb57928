"""What all pages see: labels, suggestions, the queue of images to ask about and the map, and news of each change."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf.errors import SettingError
from matex_tf.features.label import boundary, scores
from matex_tf.features.label.actions import SKIPPED, Change, agreed
from matex_tf.features.label.images import Images
from matex_tf.features.label.rounds import Result
from matex_tf.features.label.store import Store
from matex_tf.features.label.training import Labels
from matex_tf.storage import atomic_file

NOTHING = -2  # the group of an image that nobody has labelled
_ASKED = 200  # images in the queue
_KEPT = ".suggestions.npz"  # beside the file of labels

Listener = Callable[[dict[str, Any]], None]


class Board:
    """What is known of the images. Threads may share it.

    Args:
        ask: how the queue is chosen, one of boundary.ASK; with `given` also `scores`.
        method: how the map is made, pca or umap.
        given: the score of each image, see `scores.read`.
    """

    def __init__(
        self,
        store: Store,
        images: Images,
        ask: str = "margin",
        method: str = "pca",
        threshold: float = 0.95,
        given: np.ndarray | None = None,
    ):
        self.store, self.images, self.ask = store, images, ask
        self._scores = given
        self._asks = [*boundary.ASK, *(["scores"] if given is not None else [])]
        self._method, self._threshold = method, threshold
        self._lock, self._listeners = threading.RLock(), set[Listener]()
        count = len(images.names)
        self._label = np.full(count, NOTHING, np.int64)
        self._split: dict[int, dict[str, int]] = {}  # images of which people say different things
        self._skipped: dict[int, list[str]] = {}  # images without a label that people have skipped, and who has
        self.revision = 0
        for image, votes in store.votes().items():
            self._see(image, votes)
        self._result: Result | None = None
        self._before: Result | None = None  # of the round before
        self._places: np.ndarray | None = None
        self._to_map: np.ndarray | None = None  # features that the map is not made of yet
        self._mapping = False
        self._queue: list[int] = []
        self._news: dict[str, Any] = {}
        self._load()
        self._ask()

    # News

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Have a function told of news, from any thread, until what this returns is called."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def publish(self, news: dict[str, Any]) -> None:
        """Tell all pages."""
        for listener in list(self._listeners):
            listener(news)

    # What people do

    def act(self, person: str, do: Callable[[], Change]) -> dict[str, Any]:
        """Do something to the store, and tell all pages what has changed. Returns what they are told.

        Args:
            person: the name of who does it.
            do: does it.

        Raises:
            StoreError: it cannot be done.
        """
        with self._lock:
            change = do()
            for image, votes in change.images.items():
                self._see(image, votes)
            self.revision += 1
            news = {
                "type": "labels",
                "revision": self.revision,
                "by": person,
                "kind": change.kind,
                "group": change.group,
                "images": list(change.images),
                "labels": [int(self._label[image]) for image in change.images],
                "split": {image: self._split.get(image) for image in change.images},
                "skipped": {image: self._skipped.get(image, []) for image in change.images},
                "groups": self.store.groups() if change.groups else None,
                "people": self.store.people(),
            }
            self.publish(news)
            return news

    def _see(self, image: int, votes: dict[str, int]) -> None:
        group, unanimous = agreed(votes)
        self._label[image] = NOTHING if group is None else group
        self._split.pop(image, None)
        self._skipped.pop(image, None)
        if group is None and (who := [person for person, said in votes.items() if said == SKIPPED]):
            self._skipped[image] = who
        if not unanimous:
            self._split[image] = votes

    def labels(self) -> Labels:
        """What a network may learn from: the groups, and the group of each image that people agree on."""
        with self._lock:
            named = np.flatnonzero(self._label > 0)
            groups = [(group["id"], group["name"]) for group in self.store.groups()]
            return groups, dict(zip(named.tolist(), self._label[named].tolist(), strict=True))

    # What the network says

    def suggest(self, result: Result) -> None:
        """Take a result of training, and tell all pages. A round may give several."""
        with self._lock:
            if self._result is not None and self._result.number != result.number:
                self._before = self._result
            self._news = self._compare(self._before, result)
            self._result = result
            self._map(result.features)
            self._ask()
            self._keep()
            self._tell_round()

    def _tell_round(self) -> None:
        self.revision += 1
        self.publish({"type": "round", "revision": self.revision})

    def _map(self, features: np.ndarray | None) -> None:
        """Make the map; one that takes seconds is made in a thread, of the last features that there are by then."""
        if features is None or self._method == "pca":
            self._places = None if features is None else boundary.plane(features, self._method)
            return
        self._to_map = features
        if not self._mapping:
            self._mapping = True
            threading.Thread(target=self._go_on_mapping, name="matex_tf label map", daemon=True).start()

    def _go_on_mapping(self) -> None:
        while True:
            with self._lock:
                features, self._to_map = self._to_map, None
                if features is None:
                    self._mapping = False
                    return
            try:
                places = boundary.plane(features, self._method)
            except Exception as error:  # whatever a library makes of such features; the page goes on
                self.publish({"type": "note", "text": f"the map cannot be made by {self._method} ({error})"})
                continue
            with self._lock:
                self._places = places
                self._tell_round()

    def _compare(self, before: Result | None, now: Result) -> dict[str, Any]:
        """What a round has changed, and whether images without labels had a part in it."""
        most = now.suggestions.max(axis=1)
        news: dict[str, Any] = {
            "round": now.number,
            "semi": now.semi,
            "sure": int(((most >= self._threshold) & (self._label == NOTHING)).sum()),
            "threshold": self._threshold,
        }
        if before is not None and len(before.suggestions) == len(now.suggestions):
            old, new = _first(before), _first(now)
            moved = np.flatnonzero((old != new) & (self._label == NOTHING))
            pairs = Counter(zip(old[moved].tolist(), new[moved].tolist(), strict=True))
            news |= {
                "changed": moved[np.argsort(-most[moved])].tolist(),
                "before_semi": before.semi,
                "pairs": [[*pair, count] for pair, count in pairs.most_common(6)],
            }
        return news

    def choose(self, ask: str) -> None:
        """Choose the queue otherwise.

        Raises:
            SettingError: there is no such way.
        """
        if ask not in self._asks:
            raise SettingError(f"ask is {ask!r:.40}; it can be {' or '.join(self._asks)}.")
        with self._lock:
            self.ask = ask
            self._ask()
            self._tell_round()

    def _ask(self) -> None:
        """Choose the queue: what nobody has skipped, and then some of what others may know."""
        free = self._label == NOTHING
        skipped = np.array([image for image in self._skipped if free[image]], np.int64)
        free[skipped] = False
        everybody = len(self.store.people())
        others = [image for image in skipped.tolist() if len(self._skipped[image]) < everybody]
        self._queue = [*self._chosen(np.flatnonzero(free)), *self._chosen(np.array(others, np.int64))]

    def _chosen(self, free: np.ndarray) -> list[int]:
        result = self._result
        if self.ask == "scores" and self._scores is not None:
            chosen = scores.hardest(free, self._scores, _ASKED)
        elif result is None:
            chosen = boundary.ask("random", _ASKED, free, free[:0], np.zeros((0, 1)), None)
        else:
            named = np.flatnonzero(self._label > 0)
            chosen = boundary.ask(
                self.ask, _ASKED, free, named, result.suggestions, result.features, result.disagreement, result.number
            )
        return chosen.tolist()

    def snapshot(self) -> dict[str, Any]:
        """All that a page shows of labels, groups and the queue."""
        with self._lock:
            return {
                "revision": self.revision,
                "count": len(self.images.names),
                "kind": self.images.kind,
                "groups": self.store.groups(),
                "people": self.store.people(),
                "labels": self._label.tolist(),
                "split": self._split,
                "skipped": self._skipped,
                "ask": self.ask,
                "asks": self._asks,
                "queue": self._queue,
                **self._suggested(),
            }

    def _suggested(self) -> dict[str, Any]:
        result = self._result
        if result is None:
            return {"suggested": None, "confidence": None, "map": None, "news": {}}
        most = result.suggestions.max(axis=1)
        return {
            "suggested": _first(result).tolist(),
            "confidence": np.rint(100 * most).astype(int).tolist(),
            "map": None if self._places is None else np.rint(1000 * self._places).astype(int).tolist(),
            "news": self._news,
        }

    def describe(self, image: int) -> dict[str, Any]:
        """All that is known of one image.

        Raises:
            IndexError: there is no such image.
        """
        with self._lock:
            name = self.images.names[image] if image >= 0 else self.images.names[len(self.images.names)]
            chances = []
            if (result := self._result) is not None:
                row = result.suggestions[image]
                order = np.argsort(-row)[:5]
                chances = [[result.groups[place], round(float(row[place]), 4)] for place in order]
            votes = self.store.votes([image]).get(image, {})
            return {"name": name, "votes": votes, "chances": chances, "history": self.store.history(image)}

    def export_rows(self) -> list[tuple[str, str, str, str, str]]:
        """For each image its name, label, where that is from (people, network, or nobody), confidence and votes."""
        with self._lock:
            names = {group["id"]: group["name"] for group in self.store.groups()} | {0: "none of these"}
            rows, votes = [], self.store.votes()
            for image, name in enumerate(self.images.names):
                label = int(self._label[image])
                said = {who: names[group] for who, group in votes.get(image, {}).items() if group in names}
                everyone = "; ".join(f"{who}: {group}" for who, group in said.items())
                if label in names:
                    agree = sum(group == names[label] for group in said.values()) / max(1, len(said))
                    rows.append((name, names[label], "people", f"{agree:.2f}", everyone))
                elif self._result is not None and image not in self._split:
                    best = self._result.suggestions[image]
                    group = self._result.groups[int(best.argmax())]
                    rows.append((name, names.get(group, ""), "network", f"{best.max():.4f}", everyone))
                else:
                    rows.append((name, "", "disagreement" if image in self._split else "", "", everyone))
            return rows

    # Kept for the next start

    def _keep(self) -> None:
        result = self._result
        assert result is not None
        kept = {name: array for name in _ARRAYS if (array := getattr(result, name)) is not None}

        def write(draft: str) -> None:
            with open(draft, "wb") as file:
                np.savez(file, groups=result.groups, number=result.number, semi=result.semi, **kept)

        try:
            atomic_file.put(self.store.path + _KEPT, write)
            os.chmod(self.store.path + _KEPT, 0o600)
        except OSError as error:
            self.publish({"type": "note", "text": f"suggestions cannot be kept ({error.strerror})"})

    def _load(self) -> None:
        try:
            if os.stat(self.store.path + _KEPT).st_uid != os.geteuid():
                return
            with np.load(self.store.path + _KEPT, allow_pickle=False) as file:
                arrays: dict[str, Any] = dict.fromkeys(_ARRAYS)
                arrays |= {name: file[name].astype(np.float32) for name in _ARRAYS if name in file}
                result = Result(int(file["number"]), file["groups"].tolist(), **arrays, semi=bool(file["semi"]))
            known = {group["id"] for group in self.store.groups()}
            if result.suggestions.shape == (len(self.images.names), len(result.groups)) and set(result.groups) <= known:
                self._result = result
                self._map(result.features)
        except (OSError, ValueError, KeyError, EOFError, TypeError, AttributeError):
            return  # of another time; the next round brings others


_ARRAYS: Sequence[str] = ("suggestions", "features", "disagreement")


def _first(result: Result) -> np.ndarray:
    """The group that is suggested for each image."""
    return np.asarray(result.groups)[result.suggestions.argmax(axis=1)]
