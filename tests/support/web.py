"""A web server that counts the bytes that it sends."""

from __future__ import annotations

import contextlib
import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path


class Web:
    """Files of a directory by HTTP.

    Attributes:
        address: of the directory, without a slash at its end.
        sent: bytes of files that were sent.
        ranges: whether it sends parts of files.
    """

    def __init__(self, directory: Path, address: str):
        self.directory, self.address = directory, address
        self.sent, self.ranges = 0, True
        self.lock = threading.Lock()


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[Web]:
    """A server on a free port of this host, until the end of the block."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            file = web.directory / self.path.lstrip("/")
            if not file.is_file():
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            data = file.read_bytes()
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            low, high = (int(asked[1]), int(asked[2]) + 1) if asked and web.ranges else (0, len(data))
            part = data[low:high]
            self.send_response(206 if asked and web.ranges else 200)
            if asked and web.ranges:
                self.send_header("Content-Range", f"bytes {low}-{high - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(part)))
            self.send_header("Last-Modified", self.date_time_string(int(file.stat().st_mtime)))
            self.end_headers()
            if body:
                with web.lock:
                    web.sent += len(part)
                with contextlib.suppress(OSError):  # the reader has had enough
                    self.wfile.write(part)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    web = Web(directory, f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
