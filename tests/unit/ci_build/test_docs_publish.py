"""Publication of the documentation site.

Only changes are written, and nothing outside of docs/ is touched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ci_build.docs import site as site_module
from ci_build.docs.docs_publish import Publication, publish_site
from ci_build.docs.site import LIST, build_site, check_out
from core.errors import ProcessError, RequestError
from core.process import ProcessResult
from promotion.storage.s3_bucket import S3Bucket, _headers
from tests.support.memory_bucket import MemoryBucket
from tests.support.silent import Silent


def site(folder: Path, **files: str) -> Path:
    for name, text in {
        "index.html": "first",
        "a/page.html": "a",
        "assets/x.css": "x",
        **files,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_publish_writes_all_files_then_nothing(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    made = site(tmp_path)
    keys = ("docs/a/page.html", "docs/assets/x.css", "docs/index.html")
    assert publish_site(bucket, made) == Publication(written=keys, removed=(), same=0)
    assert bucket.everything()["docs/a/page.html"] == b"a"
    writes = list[str]()
    bucket.after_write = writes.append
    assert publish_site(bucket, made) == Publication(written=(), removed=(), same=3)
    assert writes == []


def test_publish_writes_changes_and_removes_stale_files_last(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    publish_site(
        bucket,
        site(
            tmp_path / "old",
            **{
                "gone.html": "gone",
                "z.html": "old",
                LIST: "[]",
            },
        ),
    )
    for key in ("v2/multi-arch/status.json", "docs-of-others/x", "v2-staging/x"):
        bucket.put_if_match(key, b"theirs", etag=None)
    writes = list[str]()
    bucket.after_write = writes.append
    changes = {
        "index.html": "second",
        "a/page.html": "b",
        "new.html": "new",
        "z.html": "z",
        LIST: "[]",
    }
    done = publish_site(bucket, site(tmp_path / "new", **changes))
    assert done.written == (
        "docs/new.html",
        "docs/a/page.html",
        "docs/z.html",
        "docs/index.html",
    )
    assert done.removed == ("docs/gone.html",)
    assert done.same == 2
    # Changed files are written concurrently.
    assert [writes[0], *sorted(writes[1:3]), *writes[3:]] == [
        *done.written,
        *done.removed,
    ]
    left = {key for key, data in bucket.everything().items() if data == b"theirs"}
    assert left == {"v2/multi-arch/status.json", "docs-of-others/x", "v2-staging/x"}


def test_publish_keeps_files_of_others(tmp_path: Path) -> None:
    """The bucket is a folder of the user, such as a checkout."""
    bucket = MemoryBucket()
    bucket.put_if_match("docs/guide.md", b"theirs", etag=None)
    with pytest.raises(
        RequestError, match=r"do not belong to a site, such as docs/guide\.md"
    ):
        publish_site(bucket, site(tmp_path, **{LIST: "[]"}))
    assert bucket.everything() == {"docs/guide.md": b"theirs"}


def test_pages_of_the_site_keep_their_names_and_are_revalidated() -> None:
    client: Any = None
    bucket = S3Bucket(client, "b", prefix="p/")
    assert bucket._name("docs/index.html") == "p/docs/index.html"
    assert bucket._name("v2/multi-arch/index.html") == "p/v2/multi-arch/"
    assert _headers("docs/index.html") == {
        "ContentType": "text/html; charset=utf-8",
        "CacheControl": "no-cache",
    }


def test_out_is_no_folder_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    check_out(tmp_path / "new")
    with pytest.raises(RequestError, match="has files that do not belong to a site"):
        check_out(tmp_path)
    with pytest.raises(RequestError, match="is not a folder"):
        check_out(tmp_path / "file")


def test_refused_pages_write_no_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("configured_uv", "locked_environment", "write_pages"):
        monkeypatch.setattr(site_module, name, Mock(return_value=tmp_path))
    refused = ProcessResult(returncode=1, stderr="WARNING - a broken link")
    runner = Mock(run=lambda *_, **__: refused)
    with pytest.raises(ProcessError, match="a broken link"):
        build_site(
            Mock(), tmp_path / "out", cache=tmp_path, runner=runner, progress=Silent()
        )
    assert not (tmp_path / "out").exists()
