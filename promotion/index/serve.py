"""An HTTP server for a bucket: used by `ci_build index serve` and by the install gate.

It extends `http.server` for clients of an index: JSON pages by content negotiation (PEP
691), compressed pages, ranges to resume downloads, and etags.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO, Self
from urllib.parse import quote, unquote, urlsplit

from core.errors import BucketError, MachineError
from promotion.index.served_files import FolderFiles, ServedFile, ServedFiles
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
_COMPRESSED_TYPES = ("text/", _JSON, _HTML, "application/json", "image/svg+xml")
"""Beginnings of content types that are worth compressing."""
_LEVEL = 6
_SMALLEST, _LARGEST = 1 << 10, 64 << 20
"""Sizes of the files that are compressed; each answer holds one in memory."""
_CHUNK = 4 << 20
"""Number of bytes that one request reads from a store."""
_RANGE = re.compile(r"bytes=(?:(\d+)-(\d*)|-(\d+))")


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """One answered request.

    Attributes:
        path: path of the URL, unquoted, without the leading slash.
        sent: number of sent bytes of the file.
    """

    path: str
    sent: int


@dataclass(frozen=True, kw_only=True, slots=True)
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
        source: a folder, or other files. Names that start with a dot, and links to
            files outside of the folder, are not served.
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
        source: Path | ServedFiles,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        static: bool = False,
        on_request: Callable[[Served], None] = lambda _: None,
    ) -> None:
        self.files = FolderFiles(source) if isinstance(source, Path) else source
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
        answer = answer_to(self.server.files, path, self.headers)
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
                self._send(answer.file, answer.start, sent)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send(self, file: BinaryIO, start: int, size: int) -> None:
        try:
            file.fileno()
        except io.UnsupportedOperation:  # a file of a store
            file.seek(start)
            while size > 0 and (chunk := file.read(min(size, _CHUNK))):
                self.wfile.write(chunk)
                size -= len(chunk)
            return
        self.connection.sendfile(file, start, size)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


def answer_to(files: ServedFiles, path: str, headers: Message) -> IndexAnswer:
    """Return the answer to a GET request.

    Args:
        path: path of the URL, unquoted, without the leading slash.
    """
    names = path.removesuffix("/").split("/") if path else []
    if not path.isprintable() or any(
        not name or name.startswith(".") for name in names
    ):
        return IndexAnswer(status=HTTPStatus.NOT_FOUND)
    try:
        return _answer_to(files, path, headers)
    except BucketError:
        return IndexAnswer(status=HTTPStatus.BAD_GATEWAY)


def _answer_to(files: ServedFiles, path: str, headers: Message) -> IndexAnswer:
    if path and not path.endswith("/"):
        if (found := files.open(path)) is None:
            if files.is_folder(path):
                return IndexAnswer(
                    status=HTTPStatus.MOVED_PERMANENTLY,
                    headers={"Location": f"/{quote(path)}/"},
                )
            return IndexAnswer(status=HTTPStatus.NOT_FOUND)
        # Clients compare the digests of these files, and some ask for them without
        # compression.
        extra = {"Content-Type": content_type(path), "Cache-Control": "no-cache"}
        if path.endswith(LASTING):
            extra["Cache-Control"] = "max-age=31536000, immutable"
            return _file(found, headers, extra)
        return _text(found, headers, extra)
    media = negotiate(headers.get("Accept", ""))
    if media is None:
        return IndexAnswer(status=HTTPStatus.NOT_ACCEPTABLE)
    page_type, name = _PAGE_TYPES[media]
    if (found := files.open(path + name)) is None:
        return IndexAnswer(status=HTTPStatus.NOT_FOUND)
    return _text(
        found,
        headers,
        {"Content-Type": page_type, "Vary": "Accept", "Cache-Control": "no-cache"},
    )


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


def accepts_gzip(accept_encoding: str) -> bool | None:
    """Return whether to compress for an Accept-Encoding header, or None if refused.

    See RFC 9110, 12.5.3: an answer without compression is acceptable unless the header
    excludes it.
    """
    weights = _weights(accept_encoding)
    other = weights.get("*")
    compressed = max(
        weights.get("gzip", 0.0),
        weights.get("x-gzip", 0.0),
        0.0 if "gzip" in weights else other or 0.0,
    )
    plain = weights.get("identity", other)
    if compressed > 0 and compressed >= weights.get("identity", 0.0):
        return True
    return None if plain == 0.0 else False


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


def _text(found: ServedFile, headers: Message, extra: dict[str, str]) -> IndexAnswer:
    """Return a file of a type that is worth compressing; others as `_file`.

    A compressed answer is another representation with another etag, and has no ranges.
    """
    if not extra["Content-Type"].startswith(_COMPRESSED_TYPES):
        return _file(found, headers, extra)
    extra["Vary"] = ", ".join(filter(None, (extra.get("Vary"), "Accept-Encoding")))
    compress = accepts_gzip(headers.get("Accept-Encoding", ""))
    if compress is None:
        found.file.close()
        return IndexAnswer(status=HTTPStatus.NOT_ACCEPTABLE)
    if not compress or not _SMALLEST <= found.size <= _LARGEST:
        return _file(found, headers, extra)
    with found.file:
        etag = found.etag[:-1] + '-gzip"'
        extra |= {"ETag": etag, "Content-Encoding": "gzip"}
        if _is_known(etag, headers):
            return IndexAnswer(status=HTTPStatus.NOT_MODIFIED, headers=extra)
        data = gzip.compress(found.file.read(found.size), _LEVEL, mtime=0)
    return IndexAnswer(
        status=HTTPStatus.OK, headers=extra, file=io.BytesIO(data), length=len(data)
    )


def _is_known(etag: str, headers: Message) -> bool:
    """Return whether the client has the file with this etag (RFC 9110, 13.1.2)."""
    known = headers.get("If-None-Match", "")
    return known == "*" or etag in known


def _file(found: ServedFile, headers: Message, extra: dict[str, str]) -> IndexAnswer:
    """Return a file, a range of it, or "not modified" (RFC 9110, 13 and 14)."""
    file = found.file
    size = found.size
    etag = found.etag
    extra |= {"ETag": etag, "Accept-Ranges": "bytes"}
    if _is_known(etag, headers):
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
