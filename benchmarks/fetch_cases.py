"""Child processes of `benchmarks.fetch`.

The generator of the tarball, the server, and the cases of ci_build.
"""

from __future__ import annotations

import io
import os
import random
import re
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PARTS = (
    ("lib/lib{}.so.7", 25, 0.13, 0o755),
    ("lib/llvm/bin/tool{}", 14, 0.10, 0o755),
    ("include/part/header{}.h", 3000, 0.03, 0o644),
    ("lib/cmake/part{}/config.cmake", 700, 0.02, 0o644),
    ("lib/llvm/lib/libLLVM{}.a", 60, 0.12, 0o644),
    ("lib/rocblas/library/TensileLibrary_gfx942_{}.co", 2500, 0.25, 0o644),
    ("lib/hipblaslt/library/gfx942/Kernels{}.hsaco", 2500, 0.25, 0o644),
    ("share/miopen/db/gfx942130_{}.db", 10, 0.08, 0o644),
    ("share/doc/part/page{}.html", 500, 0.02, 0o644),
)
"""Files of a synthetic ROCm.

Name pattern, number per GB of the whole tree, share of the tree's bytes, mode.

A build needs 28 % of the bytes; the rest is only needed at run time.
"""


def make_tarball(path: Path, gigabytes: float) -> None:
    """Write the tarball, and print its number of files and sizes."""
    # Only this child process needs isal.
    from isal import igzip

    chance = random.Random(1)
    files = 0
    total = 0
    pool = b"".join(_programs())
    opened = igzip.open(path, "wb", compresslevel=3)  # type: ignore[no-untyped-call]
    with opened as out, tarfile.open(fileobj=out, mode="w|") as tar:
        for pattern, files_per_gb, share, mode in PARTS:
            weights = [
                chance.lognormvariate(0, 1)
                for _ in range(max(1, int(files_per_gb * gigabytes)))
            ]
            for number, weight in enumerate(weights):
                info = tarfile.TarInfo(f"./{pattern.format(number)}")
                info.size = int(weight / sum(weights) * share * gigabytes * 1e9)
                info.mode = mode
                at = chance.randrange(len(pool))
                data = pool[at : at + info.size]
                while len(data) < info.size:
                    data += pool[: info.size - len(data)]
                tar.addfile(info, io.BytesIO(data))
                files += 1
                total += info.size
    print(
        f"{files} files, {total / 1e9:.2f} GB, as .tar.gz {path.stat().st_size / 1e9:.2f} GB"
    )


def _programs() -> Iterator[bytes]:
    """Yield real machine code, from the largest programs and libraries of this Python."""
    places = {Path(sys.prefix), Path(sys.base_prefix) / "lib"}
    paths = [
        path
        for place in places
        for pattern in ("bin/*", "**/*.so*")
        for path in place.glob(pattern)
    ]
    programs = sorted(
        {path.resolve() for path in paths if path.is_file()},
        key=lambda path: path.stat().st_size,
    )
    for path in programs[-12:]:
        with path.open("rb") as file:
            yield file.read(8 << 20)


def serve(file: Path) -> None:
    """Serve one file, also by ranges; print its URL, and stop when standard input is closed."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
            """Log nothing."""

        def do_GET(self) -> None:
            """Send the file or a range of it."""
            size = file.stat().st_size
            if self.path != f"/{file.name}":
                self.send_error(404)
                return
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            first, last = (
                (int(match[1]), min(int(match[2]), size - 1))
                if match
                else (0, size - 1)
            )
            self.send_response(206 if match else 200)
            if match:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", str(last + 1 - first))
            self.end_headers()
            self.wfile.flush()
            with file.open("rb") as data:
                while first <= last:
                    first += os.sendfile(
                        self.connection.fileno(), data.fileno(), first, last + 1 - first
                    )

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Ignore clients that close the connection early."""

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_address[1]}/{file.name}", flush=True)
        sys.stdin.read()
        server.shutdown()


def fetch(url: str, folder: Path, *, full: bool, keep: bool, sha256: str) -> None:
    """Download, verify and unpack a tarball."""
    # The other child processes do not need these modules.
    from ci_build.rocm.facts import selection
    from ci_build.rocm.rocm_store import RocmStore
    from core.http.client import Client
    from core.report import Reporter

    store = RocmStore(
        folder / "store", progress=Reporter(terminal=False), keep_tarballs=keep
    )
    name = url.rpartition("/")[2]
    tree = store.from_url(Client(), url, name, selection(full=full), sha256=sha256)
    print(sum(item.size for item in tree.contents.values() if item.taken))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make", path, gigabytes]:
            make_tarball(Path(path), float(gigabytes))
        case ["serve", path]:
            serve(Path(path))
        case ["fetch", address, place, what, how, digest]:
            fetch(
                address,
                Path(place),
                full=what == "full",
                keep=how == "keep",
                sha256=digest,
            )
