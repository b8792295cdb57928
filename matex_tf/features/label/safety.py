"""Who may ask the server: whoever has the token, from the page itself, by a name of this machine."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse

MOST_BYTES = 8 << 20  # of a request
_SESSION_SECONDS = 30 * 24 * 3600
_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_READING = ("GET", "HEAD")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Guard:
    """An ASGI application in front of another one, which only requests reach that may.

    Args:
        token: in the address that is printed. A browser gets a session for it, which it keeps as a cookie from then on.
            The token cannot be told from a session, and a new token ends all of them.
        hosts: names by which this server may be called, beside those of the machine itself. A page of another name
            that leads here (DNS rebinding) is refused. Any port will do: an ssh tunnel has its own.
    """

    def __init__(self, app: Any, token: str, hosts: tuple[str, ...] = ()):
        self._app, self._token, self._hosts = app, token, {*_LOCAL, *hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._refusal(scope) or self._welcome(scope)
        await (answer or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers, reading = Headers(scope=scope), scope["method"] in _READING
        host = headers.get("host", "")
        if (host.rpartition(":")[0] or host) not in self._hosts and host not in self._hosts:
            return PlainTextResponse("this server is called localhost: open the address that it has printed.\n", 403)
        if not self._knows(scope, headers):
            return PlainTextResponse("open the address that matex-tf label has printed: it has a token.\n", 403)
        site = headers.get("sec-fetch-site", "same-origin")
        if site not in ("same-origin", "none") and not (scope["path"] == "/" and reading):
            return PlainTextResponse("only the page itself may ask this.\n", 403)
        if not reading:
            origin = headers.get("origin")
            if origin is not None and origin != f"{scope['scheme']}://{host}":
                return PlainTextResponse("only the page itself may ask this.\n", 403)
            if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                return PlainTextResponse("the content must be application/json.\n", 415)
            if not headers.get("content-length", "").isdigit():
                return PlainTextResponse("a length is needed.\n", 411)
            if int(headers["content-length"]) > MOST_BYTES:
                return PlainTextResponse(f"at most {MOST_BYTES} bytes.\n", 413)
        return None

    def _knows(self, scope: Scope, headers: Headers) -> bool:
        if self._is_session(cookie_parser(headers.get("cookie", "")).get(_cookie(headers), "")):
            return True
        given = [
            QueryParams(scope["query_string"]).get("token", ""),
            headers.get("authorization", "").removeprefix("token ").removeprefix("Bearer "),
        ]
        known = self._token.encode()
        return any([hmac.compare_digest(one.encode(errors="replace"), known) for one in given])

    def _welcome(self, scope: Scope) -> RedirectResponse | None:
        """Let a browser keep a session, and take the token out of the address."""
        if scope["path"] != "/" or b"token=" not in scope["query_string"]:
            return None
        answer = RedirectResponse("/", 303)
        session = self._session(f"{int(time.time())}.{secrets.token_urlsafe(16)}")
        name = _cookie(Headers(scope=scope))
        answer.set_cookie(name, session, httponly=True, samesite="strict", max_age=_SESSION_SECONDS)
        return answer

    def _session(self, begun: str) -> str:
        """When a session has begun and a random word, signed by the token."""
        return f"{begun}.{hmac.new(self._token.encode(), f'session {begun}'.encode(), 'sha256').hexdigest()}"

    def _is_session(self, given: str) -> bool:
        begun, _, _ = given.rpartition(".")
        when, _, _ = begun.partition(".")
        if not hmac.compare_digest(self._session(begun).encode(), given.encode(errors="replace")):
            return False
        return int(when) > time.time() - _SESSION_SECONDS


def _cookie(headers: Headers) -> str:
    """The name of the cookie: of each port its own, as browsers keep cookies by the name of a machine alone. It is the
    port that the browser knows, which an ssh tunnel has chosen."""
    port = headers.get("host", "").rpartition(":")[2]
    return f"matex-label-{port if port.isascii() and port.isdigit() else 80}"
