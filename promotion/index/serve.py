"""An HTTP server for a folder: used by `ci_build index serve` and by the install gate.

It extends `http.server` by JSON pages for clients that accept them (PEP 691), and serves
neither listings of folders nor hidden files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from core.errors import MachineError
from core.frozen import frozen
from promotion.storage.object_keys import LASTING, PAGES, content_type

_JSON = "application/vnd.pypi.simple.v1+json"
_LATEST_JSON = "application/vnd.pypi.simple.latest+json"


@frozen
class Served:
    """One file that was sent.

    Attributes:
        path: path of the URL, unquoted, without the leading slash.
        sent: number of sent bytes of the file.
    """

    path: str
    sent: int


class IndexServer(ThreadingHTTPServer):
    """A server for files, as a context manager.

    Args:
        root: the folder. Names that start with a dot, and links to files outside of
            it, are not served.
        host: address to listen on.
        port: 0 means any free port.
        static: answer like a static host, with HTML pages whatever the client accepts.
        on_request: function that is called before each file is sent, so it has counted
            every request whose answer a client has received.

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
                hint="Give another PORT or --host.",
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


class _Handler(SimpleHTTPRequestHandler):
    # HTTP/1.0 as in http.server: the connection is closed after each answer.
    server_version = "ci-build-index"
    sys_version = ""
    timeout = 60.0
    server: IndexServer

    def send_head(self) -> Any:  # noqa: ANN401 - as in http.server
        # Pages may change several times in a second, the unit of this header.
        del self.headers["If-Modified-Since"]
        return super().send_head()

    def translate_path(self, path: str) -> str:
        accept = "" if self.server.static else self.headers.get("Accept", "")
        found = file_of(self.server.root, _path_of(path), accept)
        return str(found or self.server.root / ".absent")

    def guess_type(self, path: Any) -> str:  # noqa: ANN401 - as in http.server
        is_page = _path_of(self.path).endswith("/")
        json_page = is_page and str(path).endswith(PAGES[1])
        return _JSON if json_page else content_type(str(path))

    def end_headers(self) -> None:
        lasting = self.path.endswith(LASTING)
        caching = "max-age=31536000, immutable" if lasting else "no-cache"
        self.send_header("Cache-Control", caching)
        self.send_header("Vary", "Accept")
        super().end_headers()

    def copyfile(self, source: Any, outputfile: object) -> None:  # noqa: ANN401, ARG002
        size = Path(source.name).stat().st_size
        self.server.on_request(Served(path=_path_of(self.path), sent=size))
        self.connection.sendfile(source)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


def _path_of(url: str) -> str:
    return unquote(urlsplit(url).path).removeprefix("/")


def file_of(root: Path, path: str, accept: str) -> Path | None:
    """Return the file or folder of a URL, or None if it is not served.

    A slash at the end means the page of a folder: as JSON if the client names this type,
    since pip and uv prefer it.

    Args:
        root: folder with resolved links.
        path: path of the URL, unquoted, without the leading slash.
        accept: Accept header of the client.
    """
    names = path.split("/")
    if not names[-1]:
        names[-1] = PAGES[_JSON in accept or _LATEST_JSON in accept]
    if not path.isprintable() or any(
        not name or name.startswith(".") for name in names
    ):
        return None
    try:
        found = root.joinpath(*names).resolve(strict=True)
    except OSError:  # such as an absent file, or a name that is too long
        return None
    return found if found.is_relative_to(root) else None
