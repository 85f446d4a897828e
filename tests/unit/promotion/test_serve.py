"""Files of the index server; `test_index_clients` tests the server with real clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from promotion.index.serve import file_of

WHEEL = "packages/p/p-1+rocm7-py3-none-any.whl"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path.resolve() / "root"
    for name in (
        WHEEL,
        "simple/p/index.html",
        "simple/p/index.json",
        ".lock",
        "simple/.new-x",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"0123456789")
    (tmp_path / "secret").write_text("secret")
    (root / "link").symlink_to(tmp_path / "secret")
    return root


PIP = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html; q=0.1,"
    " text/html; q=0.01"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


@pytest.mark.parametrize(
    ("path", "accept", "name"),
    [
        (WHEEL, "", WHEEL),
        ("simple/p", PIP, "simple/p"),
        ("simple/p/", PIP, "simple/p/index.json"),
        ("simple/p/", BROWSER, "simple/p/index.html"),
        ("simple/p/", "", "simple/p/index.html"),
        (
            "simple/p/",
            "application/vnd.pypi.simple.latest+json",
            "simple/p/index.json",
        ),
    ],
)
def test_file_of_finds_files_and_pages(
    root: Path, path: str, accept: str, name: str
) -> None:
    assert file_of(root, path, accept) == root / name


@pytest.mark.parametrize(
    "path",
    [
        "nothing",
        "simple/",
        "../secret",
        "simple/../../secret",
        "/etc/passwd",
        "link",
        ".lock",
        "simple/.new-x",
        "a\x00b",
        "packages/",
        "a" * 300,
    ],
)
def test_file_of_serves_nothing_else(root: Path, path: str) -> None:
    assert file_of(root, path, "") is None
