"""`matex-tf label`: a page on which people name some images, and a network that names the rest."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from matex_tf.errors import MatexError, MissingPackage, SettingError, harmless
from matex_tf.job import launching
from matex_tf.job.command_line import Parser, one_of, whole
from matex_tf.launch import resources
from matex_tf.storage import atomic_file

_PORT = 8765
_NEEDS = ("h5py", "pandas", "PIL", "starlette", "uvicorn")
_ASK = ("entropy", "margin", "disagreement", "random")
_AUGMENT = ("shift", "flip", "rotate", "none")


def parser() -> Parser:
    """The command line."""
    parser = Parser(
        "matex-tf label",
        "IMAGES [options]",
        "Open a page on which people name images: a directory of them, an HDF5 or NumPy file, or a CSV table, whose "
        "rows are drawn. A network learns from that on ranks, suggests the names of the rest, and asks about those "
        "that it would learn most from. Every action is kept in a SQLite file at once.",
        "docs/label.md",
        mixed=True,
    )
    what = "images and labels"
    parser.add(what, "--classes", metavar="water,ice", default=[], convert=_names, help="Groups to begin with")
    parser.add(what, "--labels", metavar="FILE", default="", help="Keep labels here (default: IMAGES.labels.sqlite)")
    parser.add(
        what, "--dataset", metavar="NAME", default="",
        help="The array of an HDF5 or .npz file, or the columns of a table, by commas",
    )  # fmt: skip
    parser.add(what, "--person", metavar="NAME", default="", help="The name that the page proposes (default: yours)")
    parser.add(
        what, "--export", metavar="DIR", default="",
        help="Open no page: write labels.csv and labels.h5 to this directory, and end",
    )  # fmt: skip
    asked = "what is asked"
    parser.add(
        asked, "--ask", metavar="|".join(_ASK), default="margin", convert=one_of(*_ASK),
        help="How the images to ask about are chosen (default: margin)",
    )  # fmt: skip
    parser.add(
        asked, "--sample-scores", metavar="FILE", default="",
        help="Ask about the hardest rows of a training first: a file of matex-tf run --sample-scores",
    )  # fmt: skip
    parser.add(
        asked, "--map", metavar="umap|pca", default="pca", convert=one_of("pca", "umap"),
        help="How the map is made; umap needs the package umap-learn (default: pca)",
    )  # fmt: skip
    training = "training"
    launching.add_ranks(parser, training, whole(1, "a number of ranks"), "--ranks")
    parser.add(
        training, "--train", metavar="off|on", default="on", convert=one_of("on", "off"),
        help="Whether a network learns at all (default: on)",
    )  # fmt: skip
    parser.add(
        training, "--script", metavar="FILE", default="",
        help="Your own Keras script, instead of the built-in one",
    )  # fmt: skip
    parser.add(
        training, "--model", metavar="NAME", default="small",
        help="The network: small, or a class of keras.applications, such as MobileNetV2 (default: small)",
    )  # fmt: skip
    parser.add(training, "--weights", metavar="FILE", default="", help="Weights for it, without its top")
    parser.add(
        training, "--semi", metavar="off|on", default="on", convert=one_of("on", "off"),
        help="Whether it learns from images without a label too, by FixMatch (default: on)",
    )  # fmt: skip
    parser.add(
        training, "--threshold", metavar="0.9", default=0.95, convert=_share,
        help="How sure the network must be of an image to learn from it without a label (default: 0.95)",
    )  # fmt: skip
    parser.add(
        training, "--augment", metavar="|".join(_AUGMENT), default="flip", convert=one_of(*_AUGMENT),
        help="What does not change what an image shows: mirrors (flip), turns too (rotate), moves only (shift)",
    )  # fmt: skip
    parser.add(
        training, "--size", metavar="N", default=64, convert=whole(4), help="Pixels across to learn from (default: 64)"
    )
    parser.add(training, "--steps", metavar="N", default=100, convert=whole(1), help="Of a round (default: 100)")
    parser.add(training, "--batch", metavar="N", default=32, convert=whole(1), help="Labels in a batch (default: 32)")
    parser.add(
        training, "--held-out", metavar="0.1", default=0.2, convert=_share,
        help="The share of labels that is kept for measuring (default: 0.2)",
    )  # fmt: skip
    page = "page"
    parser.add(
        page, "--port", metavar="N", default=0, convert=whole(1),
        help=f"Listen here (default: {_PORT}, or the next that is free)",
    )  # fmt: skip
    parser.add(
        page, "--address", metavar="IP", default="127.0.0.1",
        help="Listen on this address of the machine; other machines may then reach the page (default: 127.0.0.1)",
    )  # fmt: skip
    return parser


def _names(flag: str, given: str) -> list[str]:
    names = [name.strip() for name in given.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise SettingError(f"{flag} is {given!r}; it must be different names with commas between, such as water,ice.")
    return names


def _share(flag: str, given: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (value := float(given)) < 1:
            return value
    raise SettingError(f"{flag} is {given!r}; it must be a number from 0 to below 1, such as 0.2.")


def command(given: argparse.Namespace) -> int:
    """Open the images and the labels, and serve the page until it is stopped."""
    if len(given.rest) != 1:
        raise SettingError("give one directory or file of images: matex-tf label IMAGES.")
    _require()
    for flag, path in (
        ("--script", given.script), ("--weights", given.weights), ("--sample-scores", given.sample_scores)
    ):  # fmt: skip
        if path and not os.path.isfile(path):
            raise SettingError(f"{flag} is {path}, and there is no such file.")
    if given.map == "umap":
        _require("umap", "--map umap needs the package umap-learn: pip install 'matex_tf[label,umap]'.")
    from matex_tf.features.label import scores
    from matex_tf.features.label.board import Board
    from matex_tf.features.label.images import open_images
    from matex_tf.features.label.store import Store

    path = os.path.abspath(given.rest[0])
    images = open_images(path, given.dataset)
    known = scores.read(given.sample_scores, len(images.names)) if given.sample_scores else None
    title = os.path.basename(path)
    labels = given.labels or f"{title}.labels.sqlite"
    store = Store(labels, images.names, f"{title} {given.dataset}".strip())
    try:
        person = given.person or _user()
        for name in given.classes:
            if name not in [group["name"] for group in store.groups()]:
                store.new_group(person, name)
        board = Board(store, images, given.ask if known is None else "scores", given.map, given.threshold, known)
        if given.export:
            return _export(board, given.export, given.size)
        return _serve(board, given, title, person)
    finally:
        store.close()


def _require(module: str = "", message: str = "") -> None:
    import importlib.util

    missing = [name for name in ([module] if module else _NEEDS) if importlib.util.find_spec(name) is None]
    if missing:
        names = ", ".join(missing).replace("PIL", "pillow")
        raise MissingPackage(message or f"matex-tf label needs {names}: pip install 'matex_tf[label]'.")


def _export(board: Any, folder: str, size: int) -> int:
    from matex_tf.features.label import export

    table, arrays = os.path.join(folder, "labels.csv"), os.path.join(folder, "labels.h5")

    def write(draft: str) -> None:
        with open(draft, "wb") as file:
            file.write(export.table(board))

    try:
        os.makedirs(folder, exist_ok=True)
        atomic_file.put(table, write)
        count = atomic_file.put(arrays, lambda draft: export.hdf5(board, size, draft))
    except OSError as error:
        raise SettingError(
            f"--export {folder} cannot be written ({error.strerror or error}): give a directory."
        ) from None
    print(f"{table}: {len(board.images.names):,} images; {arrays}: {count:,} with labels that people agree on")
    return 0


def _serve(board: Any, given: argparse.Namespace, title: str, person: str) -> int:
    import uvicorn

    from matex_tf.features.label import rounds, server
    from matex_tf.features.label.training import Plan, Training

    listening = _listen(given.address, given.port, board.store.about("port"))
    port = listening.getsockname()[1]
    board.store.remember("port", str(port))
    training = None
    if given.train == "on":
        ranks = given.ranks or (resources.default_ranks(given.hosts))
        run = ["-n", str(ranks), *(["--hosts", given.hosts] if given.hosts else [])]
        target = [os.path.abspath(given.script)] if given.script else ["-m", "matex_tf.features.label.network.train"]
        task = rounds.Task(
            [], given.semi == "on", given.threshold, given.steps, given.batch, given.augment, given.model,
            os.path.abspath(given.weights) if given.weights else "",
        )  # fmt: skip
        training = Training(
            board.images,
            Plan(run, target, given.size, given.held_out, task, stays=not given.script),
            board.labels,
            lambda state: board.publish({"type": "training", "training": state}),
            board.suggest,
            os.path.basename(board.store.path),
        )
    local = given.address in ("127.0.0.1", "::1", "localhost")
    names = () if local else (given.address, socket.gethostname(), socket.getfqdn())
    token = board.store.token
    application = server.application(board, training, token, title, person, names)
    where = "localhost" if local else given.address
    for note in board.store.notes:
        print(f"matex-tf label: {harmless(note, lines=False)}", file=sys.stderr, flush=True)
    kept = harmless(f"{title}; labels are kept in {board.store.path}", lines=False)
    print(f"{len(board.images.names):,} images of {kept}")
    print(f"Open this page:  http://{where}:{port}/?token={token}")
    if local and "SSH_CONNECTION" in os.environ:
        host = socket.getfqdn()
        print(f"From your own machine:  ssh -N -L {port}:localhost:{port} {_user()}@{host}")
    config = uvicorn.Config(
        application, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=1
    )
    running = _server(config, lambda: board.publish({"type": server.END}))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # SIGHUP: a terminal that is closed
        signal.signal(number, running.handle_exit)  # to the end: one more Ctrl-C does not interrupt training.stop
    try:
        if training is not None:
            training.start()
            training.look()
        print("Ctrl-C ends it; every label is on disk already.", flush=True)
        running.run(sockets=[listening])
    finally:
        if training is not None:
            training.stop()
    return 0


def _server(config: Any, at_end: Callable[[], None]) -> Any:
    """A server that says when it ends: it waits for pages that are open."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            at_end()
            super().handle_exit(sig, frame)

    return Server(config)


def _listen(address: str, port: int, last: str | None) -> socket.socket:
    """A socket at the port that was asked for; else at that of the last time, or the first that is free."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    first = int(last) if last and last.isdigit() else _PORT
    ports = [port] if port else [first, *range(_PORT, _PORT + 100)]
    reason: OSError | OverflowError | None = None
    for one in ports:
        found = socket.socket(family, socket.SOCK_STREAM)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((address, one))
            found.listen(128)
            return found
        except (OSError, OverflowError) as error:
            found.close()
            reason = error
    what = f"port {ports[0]}" if port else f"ports {_PORT} to {_PORT + 99}"
    raise MatexError(f"{address} {what} cannot be listened on ({reason}): give another one as --port.")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "me"
