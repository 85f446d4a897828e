"""Pages for people in Chromium.

Accessible, no wider than the window, and without foreign scripts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.support import npm
from tests.support.chromium import Tab, chromium
from tests.support.machine import need
from tests.support.web_pages import (
    HOSTILE,
    TARGETS,
    hostile_index_page,
    index_page,
    indexes_page,
    set_page,
)

pytestmark = pytest.mark.network
DESKTOP = 1280
PHONE = 360
OPEN = (
    "document.querySelectorAll('details').forEach((one) => one.removeAttribute('name')"
    " ?? (one.open = true))"
)
AXE = (
    "axe.run(document, {resultTypes: ['violations']}).then((found) =>"
    " found.violations.map((one) => "
)
AXE += (
    "[one.id, one.nodes.length, one.nodes[0].html.slice(0, 300),"
    " one.nodes[0].failureSummary]))"
)
PAGES: Mapping[str, Callable[[], bytes]] = {
    "index": functools.partial(index_page, 12, TARGETS[::4]),
    "index without sets": functools.partial(index_page, 1, yanked={1: "wrong results"}),
    "set": set_page,
    "indexes": indexes_page,
    "hostile index": hostile_index_page,
    "hostile set": functools.partial(set_page, HOSTILE),
    "hostile indexes": functools.partial(indexes_page, HOSTILE),
}


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    need("npm")
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def axe() -> str:
    return (npm.program("x").parent.parent / "axe-core" / "axe.min.js").read_text(
        encoding="utf-8"
    )


def picture_width(tab: Tab) -> int:
    """Return the width of a picture of the whole page, from the header of the PNG."""
    return int.from_bytes(tab.picture()[16:20])


def overflow(tab: Tab) -> list[str]:
    """Return the widths of a page that is wider than its window, and its widest elements."""
    wide = tab.value(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    found = tab.value(
        "[...document.querySelectorAll('body *')].filter((one) =>"
        " !one.closest('.scroll, .skip') && one.getBoundingClientRect().right >"
        " document.documentElement.clientWidth + 1).map((one) => one.outerHTML.slice(0,"
        " 200))"
    )
    return [] if wide[0] <= wide[1] and not found else [str(wide), *found[:5]]


@pytest.mark.parametrize("kind", PAGES)
def test_page_is_accessible_and_fits_every_window(
    tab: Tab, axe: str, kind: str
) -> None:
    page = PAGES[kind]()
    colours = {}
    for dark in (False, True):
        for width in (DESKTOP, PHONE):
            tab.show(page, width=width, dark=dark)
            assert tab.logged == []
            assert overflow(tab) == [], (width, dark)
            tab.value(OPEN)  # a closed section hides its problems
            assert overflow(tab) == [], (width, dark)
            if not dark:
                assert picture_width(tab) == width
            if width == DESKTOP or not dark:
                tab.value(axe + "; 0")
                assert tab.value(AXE) == [], (width, dark)
        colours[dark] = tab.value("getComputedStyle(document.body).backgroundColor")
    assert colours[False] != colours[True]
    assert tab.value("document.title") != "run"
    assert tab.value("document.scripts.length") == page.count(b"</script>")


def test_page_works_with_keyboard_and_names_its_own_address(tab: Tab) -> None:
    tab.show(index_page(3), width=DESKTOP, dark=False)
    assert tab.value("document.querySelector('[data-path]').textContent").startswith(
        "file:///"
    )
    assert tab.value("document.querySelector('[data-path]').textContent").endswith(
        "/simple/"
    )
    for _ in range(60):
        tab.press("Tab", 9)
        if tab.value("document.activeElement.tagName") == "SUMMARY":
            break
    assert tab.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert tab.value("document.querySelectorAll('details[open]').length") == 0
    tab.press("Enter", 13)
    assert tab.value("document.activeElement.parentElement.open")
    tab.value("location.hash = 'gfx1100'; new Promise((done) => setTimeout(done, 100))")
    assert tab.value("document.getElementById('gfx1100').open")


def test_page_is_useful_without_scripts(tab: Tab) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.show(index_page(3), width=PHONE, dark=False)
        text = tab.call(
            "Runtime.evaluate",
            expression="document.body.textContent",
            returnByValue=True,
        )
        assert "URL-of-this-page/simple/" in text["result"]["value"]
        assert overflow(tab) == []
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
