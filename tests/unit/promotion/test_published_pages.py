"""Published pages for people: the same from an update as from the ledger, and verified."""

from __future__ import annotations

from itertools import chain

import pytest

from core.errors import BucketError
from promotion.index.audit import verify
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark
from promotion.index.publish import publish
from promotion.index.set_summary import load_summary
from promotion.storage.bucket import Bucket
from promotion.storage.directory_bucket import DirBucket
from tests.support.promoting import NOW, RELEASED
from tests.support.web_pages import (
    Elements,
    sections,
)


def overview(bucket: Bucket) -> str:
    return bucket.get(RELEASED.overview).decode()


def test_promotion_writes_report_and_content_that_the_ledger_names(
    two_sets: DirBucket,
) -> None:
    links = [
        link
        for link in Elements(two_sets.get(RELEASED.overview)).values("href")
        if link.startswith("sets/")
    ]
    keys = {RELEASED.root + link for link in links}
    assert all(two_sets.head(key) for key in keys)
    report, _ = sorted({key for key in keys if "/report-" in key})
    (numbers,) = (key for key in keys if "/summary-" in key)
    summary = load_summary(two_sets.get(numbers), numbers)
    assert set(chain.from_iterable(summary.wheels.values())) == {
        "gfx942",
        "gfx950",
    }
    assert "No test ran on a GPU" in two_sets.get(report).decode()
    assert [*verify(two_sets, RELEASED)] == []
    two_sets.path(report).unlink()  # it is read-only
    two_sets.path(report).write_bytes(b"defaced")
    assert any(report in problem for problem in verify(two_sets, RELEASED))


def test_page_after_updates_is_that_of_the_ledger(two_sets: DirBucket) -> None:
    for kind, reason in (
        (EntryKind.YANK, "wrong results"),
        (EntryKind.QUARANTINE, "a CVE"),
    ):
        mark(
            two_sets,
            RELEASED,
            kind,
            ["2"],
            reason=reason,
            now=lambda: NOW,
        )
    page = overview(two_sets)
    assert "a CVE" in Elements(page.encode()).text
    assert "rocm7.3.0" not in "".join(sections(page.encode()).values())
    assert publish(two_sets, RELEASED, everything=True) == ()
    assert [*verify(two_sets, RELEASED)] == []


def test_verify_reports_forged_install_line(two_sets: DirBucket) -> None:
    path = two_sets.path(RELEASED.overview)
    text = path.read_text()
    forged = text.replace("--extra-index-url ", "--extra-index-url https://x.invalid/ ")
    assert forged != text
    path.write_text(forged)
    (problem,) = verify(two_sets, RELEASED)
    assert problem.startswith(f"{RELEASED.overview} has sha256 ")


def test_page_never_leaves_out_numbers_that_could_not_be_read(
    two_sets: DirBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = overview(two_sets)
    read = DirBucket.get

    def failing(self: DirBucket, key: str) -> bytes:
        if "/summary-" in key:
            raise BucketError(f"Cannot read {key}: stale file handle.")
        return read(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(DirBucket, "get", failing)
        with pytest.raises(BucketError, match="stale file handle"):
            publish(two_sets, RELEASED, everything=True)
    assert overview(two_sets) == before


def test_damaged_summary_is_an_error() -> None:
    for text in (
        "[]",
        '{"schema": 2, "wheels": {}, "modules": []}',
        '{"schema": 1, "wheels": 3, "modules": []}',
    ):
        with pytest.raises(BucketError, match=r"^x: "):
            load_summary(text.encode(), "x")
