"""Names of tarballs, listings in every form, and the choice of the newest complete build."""

from __future__ import annotations

import json
from datetime import date
from itertools import chain
from unittest.mock import Mock

import pytest

from ci_build.cli.options.rocm_options import rocm_defaults
from ci_build.cli.options.settings import Settings
from ci_build.rocm.tarball_listing import (
    check_age,
    choose,
    list_builds,
    nightly_date,
    parse_name,
    read_listing,
)
from core.errors import InputError, RequestError
from tests.support.fake_therock import names_of, page_of
from tests.support.made_rocm import rocm_request

URL = "https://host/tarball/"
TODAY = date(2025, 11, 22)
NAMES = (
    "therock-dist-linux-gfx94X-dcgpu-7.9.0.tar.gz",
    "therock-dist-linux-gfx94X-dcgpu-7.10.0a20251119.tar.gz",
    "therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz",
    "therock-dist-linux-gfx94X-dcgpu-7.10.0a20251121.tar.gz",
    "therock-dist-linux-gfx110X-all-7.10.0a20251120.tar.gz",
    "therock-dist-linux-multiarch-7.10.0a20251120.tar.gz",
    "therock-dist-linux-multiarch-7.9.0.tar.gz",
    "therock-dist-linux-gfx1151-7.10.0.dev0+abc.tar.gz",
    "therock-dist-windows-gfx1151-7.10.0a20251122.tar.gz",
    "therock-dist-linux-gfx94X-dcgpu-7.10.0a20251122.tar.gz.sha256",
    "therock-dist-linux-gfx94X-dcgpu-latest.tar.gz",
    "therock-dist-linux-gfx94X-dcgpu-tests-7.10.0a20251122.tar.gz",
    "therock-dist-linux-multiarch-tests-7.10.0a20251122.tar.gz",
)
SCRIPT = page_of(NAMES)
LINKS = "".join(
    f'<a href="{name.replace("+", "%2B")}">{name}</a> 1.2G\n' for name in NAMES
)
JSON = json.dumps({"files": list(NAMES)})


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz",
            ("gfx94X-dcgpu", "7.10.0a20251120"),
        ),
        (
            "therock-dist-linux-gfx1151-7.10.0.dev0%2Babc.tar.xz",
            ("gfx1151", "7.10.0.dev0+abc"),
        ),
        ("rocm-7.2.0.tar.gz", None),
    ],
)
def test_tarball_name_gives_family_and_version(
    name: str, told: tuple[str, str] | None
) -> None:
    assert parse_name(name) == told


@pytest.mark.parametrize("page", [SCRIPT, LINKS, JSON, LINKS.replace("-", "&#45;")])
def test_list_builds_reads_every_form_of_page(page: str) -> None:
    builds = read_listing(page, URL)
    assert len(builds) == 8
    assert (
        builds[0].url == URL + "therock-dist-linux-gfx94X-dcgpu-7.10.0a20251121.tar.gz"
    )
    assert {build.family for build in builds} == {
        "gfx94X-dcgpu",
        "gfx110X-all",
        "multiarch",
        "gfx1151",
    }
    assert [b.url for b in builds if b.family == "gfx1151"] == [
        URL + "therock-dist-linux-gfx1151-7.10.0.dev0%2Babc.tar.gz"
    ]


@pytest.mark.parametrize(
    ("page", "url", "found"),
    [
        ('<a href="v4/NAME">NAME</a>', URL, URL + "v4/NAME"),
        ('<a href="NAME">NAME</a>', URL, URL + "NAME"),
    ],
)
def test_read_listing_keeps_folders_in_urls(page: str, url: str, found: str) -> None:
    (build,) = read_listing(page.replace("NAME", NAMES[3]), url)
    assert build.url == found.replace("NAME", NAMES[3])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "does not exist"),
        (f"<ListBucketResult><Key>{NAMES[3]}</Key>", "is the XML of a bucket"),
        (NAMES[-1], "lists no tarball"),
    ],
)
def test_list_builds_refuses_other_pages(text: str | None, problem: str) -> None:
    client = Mock(text=lambda page: text if page == URL else SCRIPT)
    assert list_builds(client, f"{URL}index.html") == read_listing(SCRIPT, URL)
    with pytest.raises(InputError, match=problem):
        list_builds(client, URL.rstrip("/"))


@pytest.mark.parametrize(
    ("wish", "families", "chosen"),
    [
        ("nightly", ["gfx94X-dcgpu"], NAMES[3]),
        # The newest day of the first family is incomplete.
        ("nightly", ["gfx94X-dcgpu", "gfx110X-all"], NAMES[5]),
        # A target of a family, and two of one family.
        ("nightly", ["gfx942"], NAMES[3]),
        ("latest", ["gfx94X-dcgpu"], NAMES[0]),
        # The multi-arch tarball has it.
        ("latest", ["gfx110X-all"], NAMES[6]),
        ("7.10.0a20251119", ["gfx94X-dcgpu"], NAMES[1]),
    ],
)
def test_choose_build_picks_newest_complete(
    wish: str, families: list[str], chosen: str
) -> None:
    assert choose(read_listing(SCRIPT, URL), wish, families, TODAY).name == chosen


def test_choose_build_failure_names_newest() -> None:
    with pytest.raises(RequestError, match="No build that matches") as caught:
        choose(read_listing(SCRIPT, URL), "7.10.0a20251121", ["gfx90a"], TODAY)
    assert "gfx94X-dcgpu 7.10.0a20251121" in caught.value.hint


def test_choose_nightly_takes_newest_day_of_nightlies_only() -> None:
    versions = (
        "7.14.0a20260701",
        "7.15.0a20260630",
        "7.16.0rc1",
        "7.17.0.dev0+abc",
        "7.18.0a20260629+bkc.20260701",
    )
    builds = read_listing(
        page_of(list(chain.from_iterable(names_of(version) for version in versions))),
        URL,
    )
    assert (
        choose(builds, "nightly", ["gfx94X-dcgpu"], date(2026, 7, 2)).version
        == "7.14.0a20260701"
    )


def test_choose_nightly_refuses_old_build_with_its_date() -> None:
    builds = read_listing(SCRIPT, URL)
    assert (
        choose(builds, "nightly", ["gfx94X-dcgpu"], date(2025, 11, 24)).version
        == "7.10.0a20251121"
    )
    with pytest.raises(
        InputError, match=r"7\.10\.0a20251121 of 2025-11-21, 4 days old"
    ):
        choose(builds, "nightly", ["gfx94X-dcgpu"], date(2025, 11, 25))
    # Newer days without the family do not make an old build new.
    with pytest.raises(
        InputError, match=r"7\.10\.0a20251120 of 2025-11-20, 4 days old"
    ):
        choose(builds, "nightly", ["gfx110X-all"], date(2025, 11, 24))


def test_choose_refuses_same_name_in_two_folders() -> None:
    page = f'<a href="v4/{NAMES[3]}">x</a> <a href="asan/{NAMES[3]}">y</a>'
    with pytest.raises(RequestError, match=r"several .*20251121.*asan/.*v4/"):
        choose(read_listing(page, URL), "nightly", ["gfx94X-dcgpu"], TODAY)


@pytest.mark.parametrize(
    ("version", "day"),
    [
        ("7.10.0a20251120", date(2025, 11, 20)),
        ("6.4.0rc20250416", date(2025, 4, 16)),
        ("7.10.0a20251340", None),
        ("10.1.0a20260811+bkc.20260814", None),
    ],
)
def test_nightly_date_is_read_from_version(version: str, day: date | None) -> None:
    assert nightly_date(version) == day
    check_age(version, day or TODAY, "")


def test_family_of_listing_is_default_of_targets() -> None:
    settings = Settings({"therock": "nightly", "family": "gfx94X-dcgpu,gfx1151"})
    multi = rocm_request(
        "https://host/therock-dist-linux-multiarch-7.15.0a20260701.tar.gz"
    )
    assert rocm_defaults(settings, multi)["targets"].value == "gfx94X-dcgpu,gfx1151"
