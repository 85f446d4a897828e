"""A real HTTP server of one file with configurable misbehaviour."""

from __future__ import annotations

import re
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import (
    BaseHTTPRequestHandler,
    SimpleHTTPRequestHandler,
    ThreadingHTTPServer,
)
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from core.digests import sha256_of


@dataclass
class Behaviour:
    """Content and behaviour of a server.

    Attributes:
        files: decoded path -> content.
        ranges: whether the server supports ranges.
        drop_after: bytes of a body after which the server ends a connection, `drops`
            times.
        pause: seconds before each 64 kB of a body.
        longer: difference of Content-Length from the real length.
        length: whether responses have a Content-Length.
        answers: statuses of the first responses, before normal operation.
        broken: path -> status of all responses.
        holds: returns whether a connection stalls at an offset in a file until
            `released` is set.
        moved: path -> target of a redirect.
        etag: whether responses have an ETag; with `restless`, another one at each
            request.
        plain_plus: whether `+` in the URL means a space, as in some object stores.
    """

    files: dict[str, bytes]
    ranges: bool = True
    drop_after: int = 0
    drops: int = 1_000_000
    pause: float = 0
    longer: int = 0
    length: bool = True
    answers: list[int] = field(default_factory=list)
    broken: dict[str, int] = field(default_factory=dict)
    holds: Callable[[int], bool] = lambda _: False
    released: threading.Event = field(default_factory=threading.Event)
    moved: dict[str, str] = field(default_factory=dict)
    etag: bool = True
    restless: bool = False
    plain_plus: bool = False
    wrong_range: bool = False
    seen: list[tuple[str, str]] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)
    sent: int = 0
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behaviour: Behaviour

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        """Log nothing."""

    def do_GET(self) -> None:
        told = self.behaviour
        raw = self.path.partition("?")[0]
        path = unquote(raw.replace("+", " ") if told.plain_plus else raw)
        told.seen.append((self.path, self.headers.get("Range", "")))
        told.conditions.append(self.headers.get("If-Range", ""))
        told.authorizations.append(self.headers.get("Authorization", ""))
        if told.answers:
            self._empty(told.answers.pop(0))
        elif path in told.broken:
            self._empty(told.broken[path])
        elif path in told.moved:
            self._empty(302, Location=told.moved[path])
        elif path not in told.files:
            self._empty(404)
        else:
            self._serve(told.files[path])

    def _serve(self, data: bytes) -> None:
        told = self.behaviour
        found = (
            re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if told.ranges
            else None
        )
        first = 0
        last = len(data) - 1
        if found:
            first = int(found[1])
            last = min(int(found[2] or last), last)
            if first > last:
                self._empty(416, **{"Content-Range": f"bytes */{len(data)}"})
                return
            if told.wrong_range:
                first += 1
                last += 1
        self.send_response(206 if found else 200)
        if found:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        if told.etag:
            mark = str(len(told.seen)) if told.restless else sha256_of(data)[:8]
            self.send_header("ETag", f'"{mark}"')
        body = data[first : last + 1]
        if self.path.endswith("/"):
            self.send_header("Content-Type", "text/html")
        if told.length:
            self.send_header("Content-Length", str(len(body) + told.longer))
        self.end_headers()
        limit = len(body)
        if told.drop_after and told.drops > 0 and limit > told.drop_after:
            told.drops -= 1
            limit = told.drop_after
            self.close_connection = True
        for at in range(0, limit, 65536):
            time.sleep(told.pause)
            if told.holds(first + at):
                told.released.wait()
            piece = body[at : min(at + 65536, limit)]
            self.wfile.write(piece)
            told.sent += len(piece)
        if told.longer or not told.length:
            self.close_connection = True

    def _empty(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name, value)
        self.end_headers()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def served(
    handler: Callable[..., BaseHTTPRequestHandler],
    context: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """Serve on loopback until the end of the block; yields host and port."""
    with _Server(("127.0.0.1", 0), handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}
        )
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serving(
    behaviour: Behaviour, context: ssl.SSLContext | None = None
) -> Iterator[Behaviour]:
    """Serve on loopback until the end of the block, at `url` of the behaviour."""
    with served(
        type("Handler", (_Handler,), {"behaviour": behaviour}), context
    ) as address:
        behaviour.url = f"http://{address}"
        try:
            yield behaviour
        finally:
            behaviour.released.set()


@contextmanager
def serving_folder(folder: Path) -> Iterator[str]:
    """Serve a folder with http.server, without content negotiation and ranges; yields its URL."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with served(partial(Handler, directory=str(folder))) as address:
        yield f"http://{address}"
