"""TheRock's places for tarballs: the page that its indexer writes, and the bucket behind it.

Sources: TheRock, build_tools/index_generation_s3_tar.py (one page with a script that
has every name) and build_tools/build_tarballs.py (names); Amazon S3 API Reference,
ListObjectsV2 and ListObjects.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from itertools import product
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.file_server import served

FAMILIES = ("gfx94X-dcgpu", "gfx110X-all", "gfx1151", "multiarch")


def nightly(days: int, release: str = "7.15.0") -> str:
    """Return the version of the nightly of some days ago."""
    return f"{release}a{datetime.now(UTC).date() - timedelta(days=days):%Y%m%d}"


def names_of(version: str) -> list[str]:
    """Return the names that one nightly adds: Linux and Windows, with and without tests."""
    systems = ("linux", "windows")
    return [
        f"therock-dist-{os}-{f}{t}-{version}.tar.gz"
        for os, f, t in product(systems, FAMILIES, ("", "-tests"))
    ]


def page_of(names: Sequence[str]) -> str:
    """Return the page of a folder.

    The list in its body is empty until a browser runs the script.
    """
    files = json.dumps(
        [{"name": name, "mtime": 1777545600.0 + at} for at, name in enumerate(names)]
    )
    return f"""
    <html><head><title>Tarball index</title><script>
            const files = {files};
            function renderFiles(list) {{ list.forEach(file => {{
                const href = encodeURIComponent(file.name).replace(/%2F/g, '/');
                li.innerHTML = `<a href="${{href}}" target="_blank">${{file.name}}</a>`; }}); }}
    </script></head><body><h1>Tarball index</h1>
        <select id="filter"><option value="all">All</option><option value="gfx110X">gfx110X</option></select>
        <ul id="fileList"></ul></body></html>"""


@dataclass
class FakeTheRockBucket:
    """A bucket with `therock-dist-…` keys that is listed like Amazon S3's.

    Attributes:
        keys: every key, sorted as S3 does.
        name: name of the bucket, which is the first folder of a path-style URL.
        most: keys of one page.
        broken: answer every page with the first one.
        silent: omit the name of the next page, and the keys.
    """

    keys: Sequence[str]
    name: str = "therock-nightly-tarball"
    most: int = 1000
    broken: bool = False
    silent: bool = False
    seen: list[str] = field(default_factory=list)

    def listing(self, query: dict[str, list[str]]) -> str:
        """Return one page; tokens are opaque and have characters that a URL must escape."""
        prefix = query.get("prefix", [""])[0]
        second = query.get("list-type") == ["2"]
        token = query.get("continuation-token" if second else "marker", [""])[0]
        after = base64.b64decode(token).decode() if second and token else token
        keys = sorted(
            key
            for key in self.keys
            if key.startswith(prefix) and (self.broken or key > after)
        )
        page = keys[: self.most]
        more = len(keys) > self.most
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>1</Size></Contents>"
            for key in page
        )
        # Version 1 names the next page only if the request has a delimiter.
        following = (
            base64.b64encode(page[-1].encode()).decode() if more and second else ""
        )
        following = (
            f"<NextContinuationToken>{following}</NextContinuationToken>"
            if following
            else ""
        )
        if self.silent:
            rows = following = ""
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{self.name}</Name><Prefix>{escape(prefix)}</Prefix><MaxKeys>{self.most}</MaxKeys>"
            f"<IsTruncated>{str(more or self.silent).lower()}</IsTruncated>{following}{rows}</ListBucketResult>"
        )

    def answer(self, target: str) -> tuple[int, bytes]:
        """Return status and body for a request, in virtual-hosted or path style."""
        self.seen.append(target)
        parts = urlsplit(target)
        path = unquote(parts.path).removeprefix(f"/{self.name}").lstrip("/")
        if not path:
            return 200, self.listing(parse_qs(parts.query)).encode()
        if path in self.keys:
            return 200, b""
        return 404, b"<Error><Code>NoSuchKey</Code></Error>"


@contextmanager
def serving_bucket(bucket: FakeTheRockBucket) -> Iterator[str]:
    """Serve a bucket on loopback until the end of the block; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
            """Log nothing."""

        def do_GET(self) -> None:
            status, body = bucket.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with served(Handler) as address:
        yield f"http://{address}"
