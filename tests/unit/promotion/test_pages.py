"""Index pages: valid, complete, and the same in HTML and JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promotion.index.ledger_wheel import IndexedWheel, LedgerWheel
from promotion.index.pages import (
    dependencies_first,
    install_requirements,
    link,
    pages,
    project_html,
    project_json,
    project_of,
)
from tests.support.sets import ledger_wheel
from tests.support.wheel_sets import make_wheels

OFFER = IndexedWheel(
    wheel=ledger_wheel(
        "jax-rocm7-plugin",
        "0.10.2+rocm7.2.0",
        filename="jax_rocm7_plugin-0.10.2+rocm7.2.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        sha256="12" * 32,
        metadata_sha256="34" * 32,
        requires_python=">=3.11,<4",
        requires_dist=("jax-rocm7-pjrt==0.10.2+rocm7.2.0", "jaxlib>=0.10.2,<0.10.3"),
    ),
    href="../../packages/jax-rocm7-plugin/x%2By.whl",
    uploaded="2026-01-02T03:04:05Z",
    set_digest="56" * 32,
    tiers={"gfx942": "compiled", "gfx1010": "structure"},
)


def of(**changes: Any) -> IndexedWheel:
    return replace(OFFER, wheel=replace(OFFER.wheel, **changes))


class Anchors(HTMLParser):
    """Parser that reads a page like pip.

    Anchors, their attributes and texts, and the meta fields.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.anchors: list[dict[str, str]] = []
        self.meta: dict[str, str] = {}
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.anchors.append({**values, "text": ""})
            self._inside = True
        elif tag == "meta":
            self.meta[values.get("name", "")] = values.get("content", "")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "a"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.anchors[-1]["text"] += data


def as_json_file(anchor: dict[str, str]) -> dict[str, Any]:
    """Return an anchor as PEP 691 JSON."""
    url, _, fragment = anchor["href"].partition("#sha256=")
    said = {
        "filename": anchor["text"],
        "url": url,
        "hashes": {"sha256": fragment},
        "core-metadata": {
            "sha256": anchor["data-core-metadata"].removeprefix("sha256=")
        },
        "requires-python": anchor.get("data-requires-python"),
    }
    return {key: value for key, value in said.items() if value is not None}


text = st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]),
    min_size=1,
    max_size=20,
)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
offers = st.builds(
    IndexedWheel,
    wheel=st.builds(
        LedgerWheel,
        project=st.just("some-project"),
        filename=text,
        version=st.sampled_from(["1.0", "1.0+rocm7.2", "2!3", "1.0.post2"]),
        size=st.integers(1, 1 << 40),
        sha256=digests,
        metadata_sha256=digests,
        requires_python=st.one_of(st.just(""), text),
        requires_dist=st.just(()),
    ),
    href=st.just("../../x%2By.whl"),
    uploaded=st.sampled_from(["", "2026-01-02T03:04:05Z"]),
    set_digest=digests,
    tiers=st.dictionaries(
        st.sampled_from(["gfx942", "gfx90a:xnack-"]),
        st.sampled_from(["compiled", "structure"]),
    ),
)


@given(st.lists(offers, max_size=4))
def test_html_has_the_standard_content_of_json(group: list[IndexedWheel]) -> None:
    page = Anchors(project_html("some-project", group).decode())
    body = project_json("some-project", group)
    for anchor, file in zip(page.anchors, body["files"], strict=True):
        assert as_json_file(anchor).items() <= file.items()
    assert body["meta"] == {"api-version": "1.1"}
    assert page.meta["pypi:repository-version"] == "1.1"


def test_links_are_relative_and_quoted() -> None:
    key = "v2/multi-arch/packages/jax-rocm7-plugin/" + OFFER.wheel.filename
    href = link("v2/multi-arch/simple/", "jax-rocm7-plugin", key)
    assert href.startswith("../../packages/jax-rocm7-plugin/")
    assert "+" not in href
    assert unquote(href).endswith(OFFER.wheel.filename)


def test_pages_are_ordered_by_dependencies() -> None:
    pjrt = of(project="jax-rocm7-pjrt", requires_dist=("jaxlib",))
    jaxlib = of(project="jaxlib", requires_dist=("scipy>=1.11",))
    keys = [page.key for page in pages("s/", [OFFER, pjrt, jaxlib])]
    assert keys == [
        *("s/jaxlib/index.html", "s/jaxlib/index.json"),
        *("s/jax-rocm7-pjrt/index.html", "s/jax-rocm7-pjrt/index.json"),
        *("s/jax-rocm7-plugin/index.html", "s/jax-rocm7-plugin/index.json"),
        *("s/index.html", "s/index.json"),
    ]
    root = json.loads(list(pages("s/", [OFFER, pjrt, jaxlib]))[-1].data)
    assert root["projects"] == [
        {"name": name} for name in ("jax-rocm7-pjrt", "jax-rocm7-plugin", "jaxlib")
    ]


def test_pages_sort_files_by_version() -> None:
    versions = ["0.10.2", "0.9.1", "0.10.2+rocm7.2", "0.10.2.post1"]
    group = [of(version=version, filename=f"p-{version}.whl") for version in versions]
    page = json.loads(
        next(
            page.data
            for page in pages("s/", group)
            if page.key.endswith("plugin/index.json")
        )
    )
    assert page["versions"] == ["0.9.1", "0.10.2", "0.10.2+rocm7.2", "0.10.2.post1"]


@given(st.dictionaries(st.integers(0, 20), st.lists(st.integers(0, 20), max_size=4)))
def test_dependencies_first_orders_acyclic_projects(
    numbers: dict[int, list[int]],
) -> None:
    needs = {}
    for n, needed in numbers.items():
        needs[str(n)] = [str(m) for m in needed if m < n and m in numbers]
    order = dependencies_first(needs)
    for project, required in needs.items():
        for one in required:
            assert order.index(one) < order.index(project)


@pytest.mark.parametrize(
    ("requirement", "project"),
    [
        ("Jax_ROCm7.pjrt ==1.0", "jax-rocm7-pjrt"),
        ('numpy>=2; extra == "x"', "numpy"),
        ("a[b,c]<2", "a"),
    ],
)
def test_project_of_returns_normalised_name(requirement: str, project: str) -> None:
    assert project_of(requirement) == project


def test_installation_pins_what_a_package_index_may_have_newer(tmp_path: Path) -> None:
    """Plugin requires a range of jaxlib; pjrt is required in exactly one version."""
    wheels = [made.wheel for made in make_wheels(tmp_path, pythons=("3.12",))]
    found = install_requirements(wheels, {"jax": "0.10.2"})
    assert sorted(found) == [
        "jax-rocm7-plugin==0.10.2+rocm7.2.0",
        "jax==0.10.2",
        "jaxlib==0.10.2",
    ]
