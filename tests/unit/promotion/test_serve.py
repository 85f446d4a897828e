"""Answers of the index server; `test_index_clients` tests the server with real clients."""

from __future__ import annotations

from email.message import Message
from http import HTTPStatus
from pathlib import Path

import pytest

from promotion.index.serve import IndexAnswer, answer_to

WHEEL = "packages/p/p-1+rocm7-py3-none-any.whl"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path.resolve() / "root"
    for name, data in {
        WHEEL: b"0123456789",
        f"{WHEEL}.metadata": b"Name: p\n",
        "simple/p/index.html": b"<html>",
        "simple/p/index.json": b"{}",
        "status.json": b"{}",
        ".lock": b"",
        "simple/.new-x": b"half",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (tmp_path / "secret").write_text("secret")
    (root / "link").symlink_to(tmp_path / "secret")
    return root


def ask(root: Path, path: str, **headers: str) -> tuple[IndexAnswer, bytes]:
    """Return the answer and its body."""
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return _read(answer_to(root, path, message))


def _read(answer: IndexAnswer) -> tuple[IndexAnswer, bytes]:
    if answer.file is None:
        return answer, b""
    with answer.file as file:
        file.seek(answer.start)
        return answer, file.read(answer.length)


def test_answer_to_returns_file(root: Path) -> None:
    answer, body = ask(root, WHEEL)
    assert answer.status == HTTPStatus.OK
    assert body == b"0123456789"
    assert answer.headers["Content-Type"] == "application/zip"
    assert "immutable" in answer.headers["Cache-Control"]
    assert answer.headers["Accept-Ranges"] == "bytes"


PIP = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html; q=0.1,"
    " text/html; q=0.01"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (PIP, "application/vnd.pypi.simple.v1+json"),
        (BROWSER, "text/html; charset=utf-8"),
        ("", "text/html; charset=utf-8"),
        ("application/vnd.pypi.simple.v1+html", "application/vnd.pypi.simple.v1+html"),
        (
            "application/vnd.pypi.simple.latest+json",
            "application/vnd.pypi.simple.v1+json",
        ),
        ("application/*", "application/vnd.pypi.simple.v1+json"),
        (
            "text/html;q=0.5, application/vnd.pypi.simple.v1+json;q=0.4",
            "text/html; charset=utf-8",
        ),
    ],
)
def test_answer_to_negotiates_page(root: Path, accept: str, content_type: str) -> None:
    answer, body = ask(root, "simple/p/", Accept=accept)
    assert answer.status == HTTPStatus.OK
    assert answer.headers["Content-Type"] == content_type
    assert answer.headers["Vary"] == "Accept"
    assert body == (b"{}" if "json" in content_type else b"<html>")


@pytest.mark.parametrize(
    "accept", ["image/png", "text/html;q=0", "text/html;q=nonsense", ";;;,"]
)
def test_answer_to_refuses_unavailable_types(root: Path, accept: str) -> None:
    assert ask(root, "simple/p/", Accept=accept)[0].status == HTTPStatus.NOT_ACCEPTABLE


def test_answer_to_redirects_folder(root: Path) -> None:
    answer, _ = ask(root, "simple/p")
    assert answer.status == HTTPStatus.MOVED_PERMANENTLY
    assert answer.headers["Location"] == "/simple/p/"


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
def test_answer_to_returns_not_found(root: Path, path: str) -> None:
    assert ask(root, path)[0].status == HTTPStatus.NOT_FOUND


@pytest.mark.parametrize(
    ("asked", "body", "content_range"),
    [
        ("bytes=0-3", b"0123", "bytes 0-3/10"),
        ("bytes=8-100", b"89", "bytes 8-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
    ],
)
def test_answer_to_returns_range(
    root: Path, asked: str, body: bytes, content_range: str
) -> None:
    answer, got = ask(root, WHEEL, Range=asked)
    assert answer.status == HTTPStatus.PARTIAL_CONTENT
    assert got == body
    assert answer.headers["Content-Range"] == content_range


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=-0"])
def test_answer_to_refuses_unsatisfiable_range(root: Path, asked: str) -> None:
    answer, _ = ask(root, WHEEL, Range=asked)
    assert answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
    assert answer.headers["Content-Range"] == "bytes */10"


@pytest.mark.parametrize("asked", ["bytes=0-1,3-4", "lines=0-1"])
def test_answer_to_ignores_unknown_ranges(root: Path, asked: str) -> None:
    answer, body = ask(root, WHEEL, Range=asked)
    assert answer.status == HTTPStatus.OK
    assert body == b"0123456789"


def test_answer_to_returns_not_modified(root: Path) -> None:
    etag = ask(root, WHEEL)[0].headers["ETag"]
    for known in (f'"other", {etag}', "*"):
        answer, body = ask(root, WHEEL, If_None_Match=known)
        assert answer.status == HTTPStatus.NOT_MODIFIED
        assert body == b""
    assert ask(root, WHEEL, If_None_Match='"other"')[0].status == HTTPStatus.OK
    assert ask(root, WHEEL, Range="bytes=0-3", If_Range=etag)[1] == b"0123"
    assert ask(root, WHEEL, Range="bytes=0-3", If_Range='"other"')[1] == b"0123456789"


def test_answer_to_changes_etag_of_replaced_page(root: Path) -> None:
    page = root / "simple/p/index.html"
    before = ask(root, "simple/p/")[0].headers["ETag"]
    fresh = page.with_name("fresh")
    fresh.write_bytes(b"<HTML>")
    fresh.replace(page)
    assert ask(root, "simple/p/")[0].headers["ETag"] != before


def test_answer_to_disables_caching_of_files_that_change(root: Path) -> None:
    for path in ("simple/p/", "status.json"):
        assert ask(root, path)[0].headers["Cache-Control"] == "no-cache"
    assert "immutable" in ask(root, f"{WHEEL}.metadata")[0].headers["Cache-Control"]
