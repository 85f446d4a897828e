"""The page of tarballs that TheRock's indexer writes.

Sources: TheRock, build_tools/index_generation_s3_tar.py (one page with a script that
has every name) and build_tools/build_tarballs.py (names).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import product

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
