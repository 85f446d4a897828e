"""Listings of TheRock's builds over HTTP.

Pages of a bucket, and refusals of listings that end too early.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest

from ci_build.rocm.tarball_listing import list_builds
from core.errors import InputError
from core.http.client import Client
from tests.support.fake_therock import (
    FakeTheRockBucket,
    names_of,
    nightly,
    serving_bucket,
)

PREFIX = "v4/tarball/"
NAMES = chain.from_iterable(names_of(nightly(days)) for days in range(40))
KEYS = [PREFIX + name for name in NAMES]


@pytest.fixture
def bucket() -> FakeTheRockBucket:
    return FakeTheRockBucket(
        keys=[*KEYS, "v4/tarball-asan/" + names_of(nightly(0))[0]], most=100
    )


@pytest.mark.parametrize(
    "query", ["?list-type=2&prefix=v4/tarball/", "?prefix=v4/tarball/"]
)
def test_list_builds_reads_every_page_of_bucket(
    bucket: FakeTheRockBucket, query: str
) -> None:
    with serving_bucket(bucket) as url:
        builds = list_builds(Client(), f"{url}/{query}")
    assert len(bucket.seen) == 7
    assert all("prefix=" in target for target in bucket.seen)
    assert len(builds) == 40 * 4
    assert {nightly(0), nightly(39)} <= {build.version for build in builds}
    assert builds[0].url.startswith(f"{url}/{PREFIX}therock-dist-linux-")


def test_list_builds_reads_bucket_named_in_path(bucket: FakeTheRockBucket) -> None:
    with serving_bucket(bucket) as url:
        builds = list_builds(
            Client(), f"{url}/{bucket.name}?list-type=2&prefix={PREFIX}"
        )
        assert Client().text(builds[0].url, limit=10) is not None
    assert builds[0].url.startswith(f"{url}/{bucket.name}/{PREFIX}")


def test_list_builds_refuses_listing_that_repeats_or_breaks_off_or_is_empty(
    bucket: FakeTheRockBucket,
) -> None:
    for broken, words in (
        (replace(bucket, broken=True), "names itself as its next page"),
        (replace(bucket, silent=True), "is truncated and does not name its next page"),
        (replace(bucket, keys=[]), "lists no tarball of TheRock"),
    ):
        with serving_bucket(broken) as url, pytest.raises(InputError, match=words):
            list_builds(Client(), f"{url}/?list-type=2")
