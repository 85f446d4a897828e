"""Child processes of `benchmarks.fetch`: the server, and this project's side of each case."""

from __future__ import annotations

import os
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def serve(file: Path) -> None:
    """Serve one file with ranges, from the page cache; prints its URL, and ends when standard input does."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
            """Say nothing."""

        def do_GET(self) -> None:
            """Send the file or a range of it."""
            size = file.stat().st_size
            if self.path != f"/{file.name}":
                self.send_error(404)
                return
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            first, last = (int(found[1]), min(int(found[2]), size - 1)) if found else (0, size - 1)
            self.send_response(206 if found else 200)
            if found:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", str(last + 1 - first))
            self.end_headers()
            self.wfile.flush()
            with file.open("rb") as data:
                while first <= last:
                    first += os.sendfile(self.connection.fileno(), data.fileno(), first, last + 1 - first)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Ignore clients that close the connection early."""

    import threading

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_address[1]}/{file.name}", flush=True)
        sys.stdin.read()
        server.shutdown()


def fetch(url: str, folder: Path, *, full: bool, keep: bool, sha256: str) -> None:
    """Fetch, check and unpack."""
    from ci_build.rocm.facts import selection
    from ci_build.rocm.store import RocmStore
    from core.http.client import Client
    from core.report import Reporter

    store = RocmStore(folder / "store", progress=Reporter(terminal=False), keep_tarballs=keep)
    name = url.rpartition("/")[2]
    tree = store.from_url(Client(), url, name, selection(full=full), sha256=sha256)
    print(sum(item.size for item in tree.contents.values() if item.taken))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", path]:
            serve(Path(path))
        case ["fetch", address, place, what, how, digest]:
            fetch(address, Path(place), full=what == "full", keep=how == "keep", sha256=digest)
