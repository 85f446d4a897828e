"""Names of tarballs, listings in every form, and the choice of the newest complete build."""

from __future__ import annotations

import json

import pytest

from ci_build.rocm.listing import choose, parse_name, read_listing
from core.errors import RequestError

URL = "https://host/tarball/"
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
)
SCRIPT = f"<html><script>const files = {json.dumps([{'name': name, 'mtime': 1.5} for name in NAMES])};</script>"
LINKS = "".join(f'<a href="{name.replace("+", "%2B")}">{name}</a> 1.2G\n' for name in NAMES)
OBJECTS = "<ListBucketResult>" + "".join(f"<Key>tarball/{name}</Key>" for name in NAMES) + "</ListBucketResult>"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz", ("gfx94X-dcgpu", "7.10.0a20251120")),
        ("therock-dist-linux-gfx1151-7.10.0.dev0%2Babc.tar.xz", ("gfx1151", "7.10.0.dev0+abc")),
        ("therock-dist-linux-multiarch-10.0.0rc3.tar.zst", ("multiarch", "10.0.0rc3")),
        ("therock-dist-windows-gfx1151-7.10.0.tar.gz", None),
        ("therock-dist-linux-gfx1151-latest.tar.gz", None),
        ("rocm-7.2.0.tar.gz", None),
    ],
)
def test_tarball_name_gives_family_and_version(name: str, told: tuple[str, str] | None) -> None:
    assert parse_name(name) == told


@pytest.mark.parametrize("page", [SCRIPT, LINKS, OBJECTS, LINKS.replace("-", "&#45;")])
def test_list_builds_reads_every_form_of_page(page: str) -> None:
    builds = read_listing(page, URL)
    assert len(builds) == 8
    assert builds[0].url == URL + "therock-dist-linux-gfx94X-dcgpu-7.10.0a20251121.tar.gz"
    assert {build.family for build in builds} == {"gfx94X-dcgpu", "gfx110X-all", "multiarch", "gfx1151"}
    assert [b.url for b in builds if b.family == "gfx1151"] == [
        URL + "therock-dist-linux-gfx1151-7.10.0.dev0%2Babc.tar.gz"
    ]


@pytest.mark.parametrize(
    ("wish", "families", "chosen"),
    [
        ("nightly", ["gfx94X-dcgpu"], NAMES[3]),
        ("nightly", ["gfx110X-all"], NAMES[4]),
        # The newest day of the first family is incomplete.
        ("nightly", ["gfx94X-dcgpu", "gfx110X-all"], NAMES[5]),
        ("nightly", ["multiarch"], NAMES[5]),
        ("latest", ["gfx94X-dcgpu"], NAMES[0]),
        # The multi-arch tarball has it.
        ("latest", ["gfx110X-all"], NAMES[6]),
        ("latest", ["gfx94X-dcgpu", "gfx110X-all"], NAMES[6]),
        ("7.10.0a20251119", ["gfx94X-dcgpu"], NAMES[1]),
    ],
)
def test_choose_build_picks_newest_complete(wish: str, families: list[str], chosen: str) -> None:
    assert choose(read_listing(SCRIPT, URL), wish, families).name == chosen


@pytest.mark.parametrize(
    ("wish", "families"), [("7.10.0a20251121", ["gfx90a"]), ("7.11.0", ["gfx94X-dcgpu"]), ("7.11.0", ["multiarch"])]
)
def test_choose_build_failure_names_newest(wish: str, families: list[str]) -> None:
    with pytest.raises(RequestError, match=f"No build that matches '{wish}' has .*") as caught:
        choose(read_listing(SCRIPT, URL), wish, families)
    assert "gfx94X-dcgpu 7.10.0a20251121" in caught.value.hint
