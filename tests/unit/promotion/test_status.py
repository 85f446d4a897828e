"""status.json and the overview page."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from promotion.policy.policy import load_policy
from promotion.promote import promote
from promotion.storage.directory_bucket import DirBucket
from tests.support.promoting import NOW, POLICY, RELEASED, objects, staged_in
from tests.support.wheel_sets import make_wheels

VOID = frozenset({"meta", "br", "link"})


class Page(HTMLParser):
    """Parser that checks that every element is closed in order, and collects links and text."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(data.decode())
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open += [tag] if tag not in VOID else []
        self.links += [value for name, value in attrs if name == "href" and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirBucket:
    """Return an index of one set whose policy requires a new set within five days."""
    made = DirBucket(tmp_path / "bucket")
    staged = staged_in(made, tmp_path / "sets", make_wheels(tmp_path / "w", pythons=("3.12",)))
    promote(made, staged, replace(POLICY, stale_days=5), now=lambda: NOW)
    return made


def test_overview_page_describes_sets(bucket: DirBucket) -> None:
    page = Page(bucket.get(RELEASED.overview))
    said = json.loads(bucket.get(RELEASED.status))
    (told,) = said["sets"]
    for text in (
        told["digest"],
        "gfx942 compiled, gfx950 compiled",
        "2026-01-02T03:04:05Z",
        f"pip install --extra-index-url <this page>simple/ {told['install']}",
        "Stale after 2026-01-07T03:04:05Z",
    ):
        assert text in page.text, text
    evidence = [link for link in page.links if "/evidence/" in link]
    assert evidence == [f"sets/{told['digest']}/{name}" for name in told["evidence"]]
    assert {f"{RELEASED.root}{link}" for link in evidence} <= objects(bucket).keys()


def test_status_has_stale_time(bucket: DirBucket) -> None:
    said = json.loads(bucket.get(RELEASED.status))
    assert (said["last_promoted"], said["stale_after"]) == ("2026-01-02T03:04:05Z", "2026-01-07T03:04:05Z")


def test_status_without_limit_is_never_stale(bucket: DirBucket, tmp_path: Path) -> None:
    wheels = make_wheels(tmp_path / "w", version="0.10.2+rocm7.3.0", pythons=("3.12",))
    promote(bucket, staged_in(bucket, tmp_path / "sets", wheels), POLICY, now=lambda: NOW)
    assert json.loads(bucket.get(RELEASED.status))["stale_after"] == ""
    assert "Stale after" not in Page(bucket.get(RELEASED.overview)).text


def test_channels_set_stale_days() -> None:
    days = {
        channel: load_policy("multi-arch", channel=channel).stale_days for channel in ("local", "nightly", "release")
    }
    assert days == {"local": None, "nightly": 3, "release": 60}
