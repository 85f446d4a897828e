"""Screenshots of an index and of the report of a set, as PNG with the text of the page inside."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path

from ci_build.release.request import SERVE_PORT
from tests.support.chromium import Tab
from tests.support.pictures.drawing import comparable
from tests.support.terminal import ROOT

WIDTH, HEIGHT = 860, 640
_INDEX = "v2/multi-arch/"
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_KEYWORD = b"Page"


def pages(bucket: Path) -> Mapping[str, Path]:
    """Return name of a picture -> page in a bucket with one set."""
    (report,) = (bucket / _INDEX).glob("sets/*/report-*.html")
    return {"index": bucket / _INDEX / "index.html", "report": report}


def screenshots(bucket: Path, tab: Tab) -> Mapping[str, bytes]:
    """Return name -> PNG of each page, with the address that `index serve` gives it by default."""
    argv = [sys.executable, str(ROOT / "build" / "ci_build"), "index", "serve", "--bucket", str(bucket)]
    found = {}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            assert server.stdout.readline(), f"port {SERVE_PORT} is in use"
            for name, page in pages(bucket).items():
                tab.visit(f"http://127.0.0.1:{SERVE_PORT}/{page.relative_to(bucket)}", width=WIDTH)
                tab.value("for (const part of [...document.querySelectorAll('details')].slice(0, 1)) part.open = true")
                found[name] = with_text(tab.picture(HEIGHT), page_text(page))
        finally:
            server.terminate()
    return found


class _Text(HTMLParser):
    """A reader of the text of a page, and of its style sheet."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._hidden = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "script":
            self._hidden = self._hidden or tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._hidden:
            self._hidden = ""

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.lines += filter(None, (" ".join(line.split()) for line in data.splitlines()))


def page_text(page: Path) -> str:
    """Return the lines of a page without scripts and what differs between runs."""
    reader = _Text()
    reader.feed(page.read_text(encoding="utf-8"))
    return "\n".join(comparable(reader.lines))


def with_text(png: bytes, text: str) -> bytes:
    """Return a PNG with a text in a compressed chunk before its data (PNG specification, `zTXt`)."""
    body = b"zTXt" + _KEYWORD + b"\0\0" + zlib.compress(text.encode(), 9)
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    start = png.index(b"IDAT") - 4
    return png[:start] + chunk + png[start:]


def text_in(png: bytes) -> str:
    """Return the text that `with_text` put into a PNG."""
    (text,) = (body.partition(b"\0\0")[2] for kind, body in _chunks(png) if kind == b"zTXt")
    return zlib.decompress(text).decode()


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    assert png.startswith(_SIGNATURE)
    at = len(_SIGNATURE)
    while at < len(png):
        (size,) = struct.unpack_from(">I", png, at)
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        at += size + 12
