"""An HTTP server for a folder: used by `ci_build index serve` and by the install gate.

It extends `http.server` for clients of an index: JSON pages by content negotiation (PEP
691), ranges to resume downloads, and etags.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable
from dataclasses import field
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO, Self
from urllib.parse import quote, unquote, urlsplit

from core.errors import MachineError
from core.frozen import frozen
from promotion.storage.object_keys import LASTING, content_type

_JSON = "application/vnd.pypi.simple.v1+json"
_HTML = "application/vnd.pypi.simple.v1+html"
_PAGE_TYPES = {
    "text/html": ("text/html; charset=utf-8", "index.html"),
    _JSON: (_JSON, "index.json"),
    _HTML: (_HTML, "index.html"),
    "application/vnd.pypi.simple.latest+json": (_JSON, "index.json"),
    "application/vnd.pypi.simple.latest+html": (_HTML, "index.html"),
}
"""Accepted media type -> Content-Type and file (PEP 691). The first one is the default."""
_RANGE = re.compile(r"bytes=(?:(\d+)-(\d*)|-(\d+))")


@frozen
class Served:
    """One answered request.

    Attributes:
        path: path of the URL, unquoted, without the leading slash.
        sent: number of sent bytes of the file.
    """

    path: str
    sent: int


@frozen
class IndexAnswer:
    """An HTTP answer before it is sent: `length` bytes of an open file from `start`."""

    status: HTTPStatus
    headers: dict[str, str] = field(default_factory=dict)
    file: BinaryIO | None = None
    start: int = 0
    length: int = 0


class IndexServer(ThreadingHTTPServer):
    """A server for files, as a context manager.

    Args:
        root: the folder. Names that start with a dot, and links to files outside of
            it, are not served.
        host: address to listen on.
        port: 0 means any free port.
        static: answer like a static host, with HTML pages whatever the client accepts.
        on_request: function that is called before the body of each answer is sent, so
            it has counted every request whose answer a client has received.

    Raises:
        MachineError: the address is in use.
    """

    request_queue_size = 128

    def __init__(
        self,
        root: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        static: bool = False,
        on_request: Callable[[Served], None] = lambda _: None,
    ) -> None:
        self.root = root.resolve()
        self.static = static
        self.on_request = on_request
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise MachineError(
                f"Cannot listen on {host}:{port}: {error.strerror}.",
                hint="Use another port.",
            ) from error
        self._thread = threading.Thread(
            target=self.serve_forever, args=(0.05,), name="index-server"
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """The server's URL, with a slash at the end."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"

    def wait(self) -> None:
        """Serve until interrupted."""
        self._thread.join()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    # HTTP/1.0 as in http.server: the connection is closed after each answer.
    server_version = "ci-build-index"
    sys_version = ""
    timeout = 60.0
    server: IndexServer

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).removeprefix("/")
        if self.server.static:
            del self.headers["Accept"]
        answer = answer_to(self.server.root, path, self.headers)
        sent = answer.length if self.command == "GET" else 0
        with answer.file or contextlib.nullcontext():
            self.server.on_request(Served(path=path, sent=sent))
            if answer.status >= HTTPStatus.BAD_REQUEST and not answer.headers:
                self.send_error(answer.status)
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.status is not HTTPStatus.NOT_MODIFIED:
                self.send_header("Content-Length", str(answer.length))
            self.end_headers()
            if sent and answer.file:
                self.connection.sendfile(answer.file, answer.start, sent)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


def answer_to(root: Path, path: str, headers: Message) -> IndexAnswer:
    """Return the answer to a GET request.

    Args:
        root: folder with resolved links.
        path: path of the URL, unquoted, without the leading slash.
    """
    names = path.removesuffix("/").split("/") if path else []
    if not path.isprintable() or any(
        not name or name.startswith(".") for name in names
    ):
        return IndexAnswer(status=HTTPStatus.NOT_FOUND)
    extra = {"Content-Type": content_type(path), "Cache-Control": "no-cache"}
    if path.endswith(LASTING):
        extra["Cache-Control"] = "max-age=31536000, immutable"
    if not path or path.endswith("/"):
        media = negotiate(headers.get("Accept", ""))
        if media is None:
            return IndexAnswer(status=HTTPStatus.NOT_ACCEPTABLE)
        extra["Content-Type"], name = _PAGE_TYPES[media]
        extra["Vary"] = "Accept"
        names.append(name)
    try:
        target = root.joinpath(*names).resolve(strict=True)
        if not target.is_relative_to(root):
            return IndexAnswer(status=HTTPStatus.NOT_FOUND)
        if target.is_dir():
            location = {"Location": f"/{quote(path)}/"}
            return IndexAnswer(status=HTTPStatus.MOVED_PERMANENTLY, headers=location)
        file = target.open("rb")
    except OSError:  # such as an absent file, or a name that is too long
        return IndexAnswer(status=HTTPStatus.NOT_FOUND)
    return _file(file, headers, extra)


def negotiate(accept: str) -> str | None:
    """Return a page's media type for an Accept header, or None if all are refused."""
    weights = _weights(accept.strip() or "*/*")

    def weight(media: str) -> float:
        family = media.partition("/")[0] + "/*"
        return next(
            (weights[name] for name in (media, family, "*/*") if name in weights), 0.0
        )

    best = max(_PAGE_TYPES, key=weight)
    return best if weight(best) > 0 else None


def _weights(header: str) -> dict[str, float]:
    """Return the weight of each value of a header such as Accept; malformed ones are ignored."""
    weights: dict[str, float] = {}
    for part in header.split(","):
        value, *parameters = (word.strip().lower() for word in part.split(";"))
        quality = next(
            (word.removeprefix("q=") for word in parameters if word.startswith("q=")),
            "1",
        )
        with contextlib.suppress(ValueError):
            weights[value] = float(quality)
    return weights


def _file(file: BinaryIO, headers: Message, extra: dict[str, str]) -> IndexAnswer:
    """Return a file, a range of it, or "not modified" (RFC 9110, 13 and 14)."""
    stat = os.fstat(file.fileno())
    size = stat.st_size
    etag = f'"{stat.st_mtime_ns:x}-{size:x}-{stat.st_ino:x}"'
    extra |= {"ETag": etag, "Accept-Ranges": "bytes"}
    known = headers.get("If-None-Match", "")
    if known == "*" or etag in known:
        file.close()
        return IndexAnswer(status=HTTPStatus.NOT_MODIFIED, headers=extra)
    wanted = _RANGE.fullmatch(headers.get("Range", ""))
    if wanted is None or headers.get("If-Range", etag) != etag:
        return IndexAnswer(status=HTTPStatus.OK, headers=extra, file=file, length=size)
    start = int(wanted[1]) if wanted[1] else max(0, size - int(wanted[3]))
    end = min(int(wanted[2]) + 1, size) if wanted[2] else size
    if start >= end:
        file.close()
        unsatisfiable = {"Content-Range": f"bytes */{size}"}
        return IndexAnswer(
            status=HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers=unsatisfiable
        )
    extra["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return IndexAnswer(
        status=HTTPStatus.PARTIAL_CONTENT,
        headers=extra,
        file=file,
        start=start,
        length=end - start,
    )
