"""The server of the page: small answers in JSON, pictures, and news as server-sent events.

Labels and what they come to are in board.py, the file of labels in store.py, training in training.py. The page itself
is in the folder page/, and asks only what stands here.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from matex_tf.errors import DataError, MatexError, SettingError
from matex_tf.features.label import export, pixels
from matex_tf.features.label.actions import Change, StoreError
from matex_tf.features.label.board import Board
from matex_tf.features.label.safety import Guard
from matex_tf.features.label.training import Training

_PAGE = Path(__file__).parent / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_SIZES = (64, 128, 256, 512)  # of pictures, in pixels
_PULSE = 15.0  # seconds between signs of life to a page that has no news
END = "end"  # news with which all pages are left
_WAITING = 1000  # pieces of news for a page that does not read them, after which it is left


class BadRequest(MatexError):
    """A request that the page does not make."""


def application(
    board: Board, training: Training | None, token: str, title: str, person: str, hosts: tuple[str, ...] = ()
) -> Guard:
    """The ASGI application.

    Args:
        training: None where no network is trained.
        title: of what is labelled.
        person: the name that a page proposes.
        hosts: names by which the server is called, beside localhost.
    """
    server = Server(board, training, title, person)
    routes = [
        Route("/", server.page),
        Route("/page/{name}", server.page),
        Route("/api/all", server.all),
        Route("/api/image/{image:int}", server.describe),
        Route("/api/act", server.act, methods=["POST"]),
        Route("/api/training", server.train, methods=["POST"]),
        Route("/api/events", server.events),
        Route("/image/{image:int}/{size:int}.png", server.picture),
        Route("/export/labels.csv", server.csv),
        Route("/export/labels.h5", server.hdf5),
    ]
    handlers: Any = {MatexError: _explain}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, hosts)


async def _explain(request: Request, error: Exception) -> Response:
    code = 400 if isinstance(error, (BadRequest, SettingError)) else 409 if isinstance(error, StoreError) else 422
    return JSONResponse({"error": str(error)}, code)


class Server:
    """What is asked, and what is answered. Functions that are not coroutines run in threads of Starlette's."""

    def __init__(self, board: Board, training: Training | None, title: str, person: str):
        self._board, self._training, self._title, self._person = board, training, title, person
        self._files = {path.name: path for path in _PAGE.iterdir() if path.suffix in _TYPES}  # and no others

    def page(self, request: Request) -> Response:
        """A file of the page."""
        path = self._files.get(request.path_params.get("name", "index.html"))
        if path is None:
            return PlainTextResponse("there is no such file.\n", 404)
        return Response(path.read_bytes(), media_type=_TYPES[path.suffix], headers={"cache-control": "no-cache"})

    def all(self, request: Request) -> Response:
        """All that a page shows, once; news follow as events."""
        training = self._training
        state = {"state": "none"} if training is None else {**training.state, "on": training.on}
        semi = training is not None and training.plan.task.semi
        own = {"title": self._title, "person": self._person, "training": state, "semi": semi}
        return JSONResponse({**self._board.snapshot(), **own})

    def describe(self, request: Request) -> Response:
        """One image."""
        try:
            return JSONResponse(self._board.describe(request.path_params["image"]))
        except IndexError:
            return PlainTextResponse("there is no such image.\n", 404)

    def picture(self, request: Request) -> Response:
        """One image, as a PNG file of at most `size` pixels across."""
        number, size = request.path_params["image"], request.path_params["size"]
        if number >= len(self._board.images.names) or size not in _SIZES:
            return PlainTextResponse("there is no such image.\n", 404)
        try:
            content = pixels.png(self._board.images.picture(number), size)
        except DataError as error:
            return PlainTextResponse(f"{error}\n", 422)
        return Response(content, media_type="image/png", headers={"cache-control": "private, max-age=3600"})

    async def act(self, request: Request) -> Response:
        """Something that a person does."""
        said = await _json(request)
        return JSONResponse(await run_in_threadpool(self._act, said))

    def _act(self, said: dict[str, Any]) -> dict[str, Any]:
        store, kind, person = self._board.store, said.get("kind"), _text(said, "person")
        acts: dict[Any, Callable[[], Change]] = {
            "assign": lambda: store.assign(person, _images(said), _number(said, "group", none=True)),
            "new group": lambda: store.new_group(person, _text(said, "name"), _images(said)),
            "rename": lambda: store.rename(person, _number(said, "group"), _text(said, "name")),
            "merge": lambda: store.merge(person, _number(said, "group"), _number(said, "into")),
            "split": lambda: store.split(person, _number(said, "group"), _text(said, "name"), _images(said)),
            "undo": lambda: store.undo(person),
            "redo": lambda: store.redo(person),
        }
        if not isinstance(kind, str) or kind not in acts:
            raise BadRequest(f"kind can be {', '.join(acts)}.")
        news = self._board.act(person, acts[kind])
        if self._training is not None:
            self._training.look()
        return news

    async def train(self, request: Request) -> Response:
        """Switch training, FixMatch, or how images are asked for."""
        said = await _json(request)
        if "ask" in said:
            await run_in_threadpool(self._board.choose, _text(said, "ask"))
        switches = {name: said[name] for name in ("on", "semi") if isinstance(said.get(name), bool)}
        if switches and self._training is not None:
            self._training.switch(**switches)
        return JSONResponse({})

    async def events(self, request: Request) -> Response:
        """News, as long as the page is there."""
        return StreamingResponse(self._news(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def _news(self) -> AsyncIterator[str]:
        loop, waiting = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any]]()

        def hear(news: dict[str, Any]) -> None:  # in any thread
            with contextlib.suppress(RuntimeError):  # the server ends
                loop.call_soon_threadsafe(waiting.put_nowait, news)

        leave = self._board.listen(hear)
        try:
            yield f"event: hello\ndata: {json.dumps({'revision': self._board.revision})}\n\n"
            while waiting.qsize() < _WAITING:
                try:
                    news = await asyncio.wait_for(waiting.get(), _PULSE)
                except asyncio.TimeoutError:
                    yield ": still here\n\n"
                    continue
                if news["type"] == END:
                    return
                yield f"event: {news['type']}\ndata: {json.dumps(news)}\n\n"
        finally:
            leave()

    def csv(self, request: Request) -> Response:
        """The table of all labels."""
        return _download(export.table(self._board), "text/csv; charset=utf-8", "labels.csv")

    def hdf5(self, request: Request) -> Response:
        """Images and labels."""
        file = io.BytesIO()
        size = 64 if self._training is None else self._training.plan.size
        export.hdf5(self._board, size, file)
        return _download(file.getvalue(), "application/x-hdf5", "labels.h5")


def _download(content: bytes, kind: str, name: str) -> Response:
    return Response(content, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'})


async def _json(request: Request) -> dict[str, Any]:
    try:
        said = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise BadRequest("the content is not JSON.") from None
    if not isinstance(said, dict):
        raise BadRequest("the content must be a JSON object.")
    return said


def _text(said: dict[str, Any], name: str) -> str:
    if not isinstance(text := said.get(name), str):
        raise BadRequest(f"{name} must be text.")
    return text


def _number(said: dict[str, Any], name: str, none: bool = False) -> Any:
    number = said.get(name)
    if (none and number is None) or (type(number) is int and abs(number) < 1 << 53):
        return number
    raise BadRequest(f"{name} must be a whole number.")


def _images(said: dict[str, Any]) -> list[int]:
    images = said.get("images", [])
    if isinstance(images, list) and all(type(image) is int for image in images):
        return images
    raise BadRequest("images must be a list of whole numbers.")
