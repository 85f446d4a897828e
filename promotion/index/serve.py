"""An HTTP server for a bucket in a folder: what `ci_build index serve` and the install gate use."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self
from urllib.parse import quote, unquote, urlsplit

from core.errors import MachineError
from promotion.storage.keys import METADATA_SUFFIX

_JSON = "application/vnd.pypi.simple.v1+json"
_HTML = "application/vnd.pypi.simple.v1+html"
_OFFERED = {
    "text/html": ("text/html; charset=utf-8", "index.html"),
    _JSON: (_JSON, "index.json"),
    _HTML: (_HTML, "index.html"),
    "application/vnd.pypi.simple.latest+json": (_JSON, "index.json"),
    "application/vnd.pypi.simple.latest+html": (_HTML, "index.html"),
}
"""Media type asked for -> Content-Type and file (PEP 691); the first one is for those who do not say."""
_TEXT = "text/plain; charset=utf-8"
_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".toml": _TEXT,
    ".txt": _TEXT,
    METADATA_SUFFIX: _TEXT,
}
_RANGE = re.compile(r"bytes=(?:(\d+)-(\d*)|-(\d+))")
_IDLE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """One answered request.

    Attributes:
        path: of the URL, unquoted, without the slash in front.
        sent: bytes of the body.
    """

    method: str
    path: str
    status: int
    sent: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """An HTTP answer before it is sent; `file` is open and the sender closes it."""

    status: HTTPStatus
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    file: BinaryIO | None = None
    start: int = 0
    length: int = 0


class IndexServer:
    """Serves a folder while it is entered as a context manager; every connection is closed at the end.

    Args:
        root: the folder; nothing outside it is served, nor names that start with a dot.
        host: address to listen on.
        port: 0 takes a free one.
        on_request: called after each answer, from the thread that gave it.
    """

    def __init__(
        self,
        root: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        on_request: Callable[[Served], None] | None = None,
    ) -> None:
        self._root = root.resolve()
        self._address = (host, port)
        self._on_request = on_request

    def __enter__(self) -> Self:
        try:
            self._server = _Server(self._address, self._root, self._on_request or (lambda _: None))
        except OSError as error:
            where = f"{self._address[0]}:{self._address[1]}"
            raise MachineError(f"Cannot listen on {where}: {error.strerror}.", hint="Use another port.") from error
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="index-server")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Where it listens, with a slash at its end."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/"

    def wait(self) -> None:
        """Serve until interrupted."""
        self._thread.join()

    def settle(self, enough: Callable[[], bool], timeout: float = _IDLE_SECONDS) -> bool:
        """Wait until it is enough, as long as answers are under way; whether it is.

        A client has the last byte of an answer before `on_request` hears of it.

        Args:
            enough: looked at again after each answer.
            timeout: in seconds.
        """
        server = self._server
        with server.changed:
            server.changed.wait_for(lambda: enough() or not server.answering, timeout)
            return enough()


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], root: Path, on_request: Callable[[Served], None]) -> None:
        self.root, self.on_request = root, on_request
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        self.answering = 0
        self.changed = threading.Condition()
        super().__init__(address, _Handler)

    @contextlib.contextmanager
    def answer(self) -> Iterator[None]:
        """An answer is under way."""
        with self.changed:
            self.answering += 1
        try:
            yield
        finally:
            with self.changed:
                self.answering -= 1
                self.changed.notify_all()

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as socketserver has it
        with self._open_lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401
        with self._open_lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """End idle connections too, so that no thread outlives the server."""
        with self._open_lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """A client that hangs up is no event."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "ci-build-index"
    sys_version = ""
    timeout = _IDLE_SECONDS
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        with self.server.answer():
            self._respond(with_body=True)

    def do_HEAD(self) -> None:
        with self.server.answer():
            self._respond(with_body=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: `on_request` tells."""

    def _respond(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path).removeprefix("/")
        answer = answer_to(self.server.root, path, self.headers)
        with answer.file or contextlib.nullcontext():
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.status is not HTTPStatus.NOT_MODIFIED:
                self.send_header("Content-Length", str(answer.length if answer.file else len(answer.body)))
            self.end_headers()
            sent = 0
            if with_body and answer.file is None:
                sent = self.wfile.write(answer.body)
            elif with_body and answer.file is not None and answer.length:
                sent = self.connection.sendfile(answer.file, answer.start, answer.length)
        self.server.on_request(Served(method=self.command, path=path, status=answer.status, sent=sent))


def answer_to(root: Path, path: str, headers: Message) -> Answer:
    """What to answer to a GET of a path.

    Args:
        root: the served folder, resolved.
        path: of the URL, unquoted, without the slash in front.
        headers: of the request.
    """
    target = _locate(root, path)
    if target is None:
        return _plain(HTTPStatus.NOT_FOUND, "There is nothing here.")
    if not target.is_dir():
        content_type = _CONTENT_TYPES.get(target.suffix, "application/octet-stream")
        caching = "no-cache" if target.suffix in (".html", ".json") else "max-age=31536000, immutable"
        return _file(target, headers, {"Content-Type": content_type, "Cache-Control": caching})
    if path and not path.endswith("/"):
        return Answer(status=HTTPStatus.MOVED_PERMANENTLY, headers={"Location": f"/{quote(path)}/"})
    chosen = negotiate(headers.get("Accept", ""))
    if chosen is None:
        return _plain(HTTPStatus.NOT_ACCEPTABLE, f"On offer: {', '.join(_OFFERED)}.")
    content_type, name = _OFFERED[chosen]
    return _file(target / name, headers, {"Content-Type": content_type, "Vary": "Accept", "Cache-Control": "no-cache"})


def negotiate(accept: str) -> str | None:
    """The media type of a page for an Accept header (RFC 9110, 12.5.1); None when none of them will do."""
    asked: dict[str, float] = {}
    for part in accept.split(","):
        media, *parameters = (word.strip().lower() for word in part.split(";"))
        weights = [word.removeprefix("q=") for word in parameters if word.startswith("q=")]
        with contextlib.suppress(ValueError):
            asked[media] = float(weights[0]) if weights else 1.0
    if not accept.strip():
        asked = {"*/*": 1.0}

    def weight(media: str) -> float:
        family = media.partition("/")[0] + "/*"
        return next((asked[name] for name in (media, family, "*/*") if name in asked), 0.0)

    best = max(_OFFERED, key=weight)
    return best if weight(best) > 0 else None


def _locate(root: Path, path: str) -> Path | None:
    """The file or folder of a path; None when it is absent, hidden or outside."""
    names = path.split("/")
    if names[-1] == "":
        names.pop()
    if not path.isprintable() or any(not name or name.startswith(".") for name in names):
        return None
    target = root.joinpath(*names).resolve()
    try:
        there = target.is_dir() if path.endswith("/") else target.exists()
    except OSError:  # such as a name that is too long
        return None
    return target if there and target.is_relative_to(root) else None


def _file(path: Path, headers: Message, extra: dict[str, str]) -> Answer:
    """A file, a part of it, or the word that it has not changed (RFC 9110, 13 and 14)."""
    try:
        file = path.open("rb")
    except OSError:
        return _plain(HTTPStatus.NOT_FOUND, "There is nothing here.")
    stat = os.fstat(file.fileno())
    size, etag = stat.st_size, f'"{stat.st_mtime_ns:x}-{stat.st_size:x}-{stat.st_ino:x}"'
    extra |= {"ETag": etag, "Accept-Ranges": "bytes"}
    if etag in headers.get("If-None-Match", "") or headers.get("If-None-Match") == "*":
        file.close()
        return Answer(status=HTTPStatus.NOT_MODIFIED, headers=extra)
    asked = _RANGE.fullmatch(headers.get("Range", ""))
    if asked is None or headers.get("If-Range", etag) != etag:
        return Answer(status=HTTPStatus.OK, headers=extra, file=file, length=size)
    start = int(asked[1]) if asked[1] else max(0, size - int(asked[3]))
    end = min(int(asked[2]) + 1, size) if asked[2] else size
    if start >= end:
        file.close()
        return Answer(status=HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers={"Content-Range": f"bytes */{size}"})
    extra["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return Answer(status=HTTPStatus.PARTIAL_CONTENT, headers=extra, file=file, start=start, length=end - start)


def _plain(status: HTTPStatus, text: str) -> Answer:
    return Answer(status=status, headers={"Content-Type": _TEXT}, body=f"{text}\n".encode())
