"""Screenshots of an index and of the report of a set."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ci_build.release.release_request import SERVE_PORT
from tests.support.chromium import Tab
from tests.support.terminal import ROOT

WIDTH = 1100
HEIGHT = 640


def screenshots(bucket: Path, tab: Tab) -> Mapping[str, bytes]:
    """Return name -> PNG of pages in a bucket with one set, at the default address."""
    (report,) = bucket.glob("v2/multi-arch/sets/*/report-*.html")
    pages = {"index": bucket / "v2/multi-arch/index.html", "report": report}
    argv = [
        sys.executable,
        str(ROOT / "build" / "ci_build"),
        "index",
        "serve",
        "--bucket",
        str(bucket),
    ]
    found = {}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            assert server.stdout.readline(), f"port {SERVE_PORT} is in use"
            for name, page in pages.items():
                tab.visit(
                    f"http://127.0.0.1:{SERVE_PORT}/{page.relative_to(bucket)}",
                    width=WIDTH,
                )
                found[name] = tab.picture(HEIGHT)
        finally:
            server.terminate()
    return found
