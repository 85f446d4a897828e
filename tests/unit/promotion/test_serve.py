"""Answers of the index server; `test_index_clients` tests the server with real clients."""

from __future__ import annotations

import contextlib
import gzip
import io
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import cast

import pytest

from core.errors import BucketError
from promotion.index.serve import IndexAnswer, accepts_gzip, answer_to
from promotion.index.served_files import FolderFiles, ServedFiles, StoreFiles
from promotion.storage.bucket import AbsentError, ConflictError, check_key
from promotion.storage.s3_bucket import S3Bucket

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


class Reader(io.BufferedReader):
    """An object of a store; see `s3_bucket.ObjectReader`."""

    def __init__(self, path: Path, etag: str) -> None:
        super().__init__(io.FileIO(path))
        self.size = path.stat().st_size
        self.etag = etag

    def fileno(self) -> int:
        raise io.UnsupportedOperation


class Store:
    """A store with the files of a folder, as far as the server uses it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, key: str) -> Reader:
        path = self.root / check_key(key)
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink():
                found = FolderFiles(self.root).open(key)
                assert found is not None
                found.file.close()
                return Reader(path, found.etag)
        raise AbsentError(f"{key} is not in the bucket.")


def ask(root: Path, path: str, **headers: str) -> tuple[IndexAnswer, bytes]:
    """Return the answer and its body, which are equal for a folder and for a store."""
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    sources: tuple[ServedFiles, ...] = (
        FolderFiles(root),
        StoreFiles(cast("S3Bucket", Store(root))),
    )
    answer, other = (_read(answer_to(source, path, message)) for source in sources)
    assert (answer[0].status, answer[0].headers, answer[1]) == (
        other[0].status,
        other[0].headers,
        other[1],
    )
    return answer


def _read(answer: IndexAnswer) -> tuple[IndexAnswer, bytes]:
    if answer.file is None:
        return answer, b""
    with answer.file as file:
        file.seek(answer.start)
        return answer, file.read(answer.length)


def test_answer_to_returns_file(root: Path) -> None:
    answer, body = ask(root, WHEEL)
    assert (answer.status, body) == (HTTPStatus.OK, b"0123456789")
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
    assert answer.headers["Vary"] == "Accept, Accept-Encoding"
    assert body == (b"{}" if "json" in content_type else b"<html>")


@pytest.mark.parametrize(
    "accept", ["image/png", "text/html;q=0", "text/html;q=nonsense", ";;;,"]
)
def test_answer_to_refuses_unavailable_types(root: Path, accept: str) -> None:
    assert ask(root, "simple/p/", Accept=accept)[0].status == HTTPStatus.NOT_ACCEPTABLE


def test_answer_to_redirects_folder(root: Path) -> None:
    answer, _ = ask(root, "simple/p")
    assert (answer.status, answer.headers["Location"]) == (
        HTTPStatus.MOVED_PERMANENTLY,
        "/simple/p/",
    )


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
    assert (answer.status, got) == (HTTPStatus.PARTIAL_CONTENT, body)
    assert answer.headers["Content-Range"] == content_range


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=-0"])
def test_answer_to_refuses_unsatisfiable_range(root: Path, asked: str) -> None:
    answer, _ = ask(root, WHEEL, Range=asked)
    assert answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
    assert answer.headers["Content-Range"] == "bytes */10"


@pytest.mark.parametrize("asked", ["bytes=0-1,3-4", "lines=0-1"])
def test_answer_to_ignores_unknown_ranges(root: Path, asked: str) -> None:
    answer, body = ask(root, WHEEL, Range=asked)
    assert (answer.status, body) == (HTTPStatus.OK, b"0123456789")


def test_answer_to_returns_not_modified(root: Path) -> None:
    etag = ask(root, WHEEL)[0].headers["ETag"]
    for known in (f'"other", {etag}', "*"):
        answer, body = ask(root, WHEEL, If_None_Match=known)
        assert (answer.status, body) == (HTTPStatus.NOT_MODIFIED, b"")
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


# Compression

PAGE = b"<html>" + b"<a href='wheel'>wheel</a>\n" * 400


@pytest.mark.parametrize(
    ("accepted", "compress"),
    [
        ("gzip, deflate, br", True),
        ("GZIP;q=0.5", True),
        ("*", True),
        ("", False),
        ("br, zstd", False),
        ("gzip;q=0, *;q=1", False),
        ("gzip;q=0.2, identity;q=0.8", False),
        ("identity;q=0", None),
    ],
)
def test_accepts_gzip_obeys_weights(accepted: str, compress: bool | None) -> None:
    assert accepts_gzip(accepted) is compress


@pytest.mark.parametrize("path", ["simple/p/", "simple/p/index.html"])
def test_answer_to_compresses_pages(root: Path, path: str) -> None:
    (root / "simple/p/index.html").write_bytes(PAGE)
    answer, body = ask(root, path, Accept_Encoding="gzip", Range="bytes=0-9")
    assert (answer.status, gzip.decompress(body)) == (HTTPStatus.OK, PAGE)
    assert (answer.headers["Content-Encoding"], answer.length) == ("gzip", len(body))
    assert len(body) < len(PAGE) / 20
    assert "Accept-Encoding" in answer.headers["Vary"]
    assert "Accept-Ranges" not in answer.headers
    assert body == ask(root, path, Accept_Encoding="gzip")[1]
    plain, body = ask(root, path)
    assert body == PAGE
    assert "Content-Encoding" not in plain.headers
    assert plain.headers["Vary"] == answer.headers["Vary"]
    etags = answer.headers["ETag"], plain.headers["ETag"]
    assert etags[0] != etags[1]
    for etag, status in zip(
        etags, (HTTPStatus.NOT_MODIFIED, HTTPStatus.OK), strict=True
    ):
        assert (
            ask(root, path, Accept_Encoding="gzip", If_None_Match=etag)[0].status
            == status
        )
    assert ask(root, path, If_None_Match=etags[0])[0].status == HTTPStatus.OK


def test_answer_to_refuses_client_without_coding(root: Path) -> None:
    assert (
        ask(root, "status.json", Accept_Encoding="*;q=0")[0].status
        == HTTPStatus.NOT_ACCEPTABLE
    )


@pytest.mark.parametrize("path", [WHEEL, f"{WHEEL}.metadata", "simple/p/"])
def test_answer_to_does_not_compress_other_files(root: Path, path: str) -> None:
    if "simple" not in path:
        (root / path).write_bytes(PAGE)
    answer, body = ask(root, path, Accept_Encoding="gzip")
    assert "Content-Encoding" not in answer.headers
    assert body in (PAGE, b"<html>")


# Stores


def test_answer_to_disables_caching_of_files_that_change(root: Path) -> None:
    for path in ("simple/p/", "status.json"):
        assert ask(root, path)[0].headers["Cache-Control"] == "no-cache"
    assert "immutable" in ask(root, f"{WHEEL}.metadata")[0].headers["Cache-Control"]


def test_page_that_is_replaced_while_it_is_read_is_served_whole(root: Path) -> None:
    class Replaced(Reader):
        def read(self, size: int | None = -1, /) -> bytes:
            raise ConflictError("replaced")

    class Racing(Store):
        def __init__(self, races: int) -> None:
            super().__init__(root)
            self.races = races

        def open(self, key: str) -> Reader:
            self.races -= 1
            return (Replaced if self.races >= 0 else Reader)(self.root / key, '"1"')

    found = StoreFiles(cast("S3Bucket", Racing(2))).open("status.json")
    assert found is not None
    assert found.file.read() == b"{}"
    with pytest.raises(ConflictError):
        StoreFiles(cast("S3Bucket", Racing(9))).open("status.json")


def test_failing_store_is_a_bad_gateway(root: Path) -> None:
    class Failing(Store):
        def open(self, key: str) -> Reader:
            raise BucketError(f"The request for {key} failed.")

    said: list[str] = []
    files = StoreFiles(cast("S3Bucket", Failing(root)), said.append)
    assert answer_to(files, "status.json", Message()).status == HTTPStatus.BAD_GATEWAY
    assert said == ["The request for status.json failed."]
