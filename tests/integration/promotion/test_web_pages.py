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
    "hostile index": hostile_index_page,
    "hostile set": functools.partial(set_page, HOSTILE),
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
            if width == DESKTOP or not dark:
                tab.value(axe + "; 0")
                assert tab.value(AXE) == [], (width, dark)
        colours[dark] = tab.value("getComputedStyle(document.body).backgroundColor")
    assert colours[False] != colours[True]
    assert tab.value("document.title") != "run"
    assert tab.value("document.scripts.length") == page.count(b"</script>")


def test_page_of_ten_gpus_has_three_screens_and_answers_on_the_first(tab: Tab) -> None:
    page = index_page(12, TARGETS[::3])
    tab.show(page, width=DESKTOP, dark=False)
    assert tab.value("document.documentElement.scrollHeight") <= 3 * 800
    answer = "document.querySelector('.panel summary').getBoundingClientRect().bottom"
    assert tab.value(answer) < 800
    assert len(index_page(12, TARGETS)) < 150_000


def test_page_works_with_keyboard_search_and_links(tab: Tab) -> None:
    tab.show(index_page(3, TARGETS), width=DESKTOP, dark=False)
    shown = (
        "[...document.querySelectorAll('.panel')].filter((one) =>"
        " one.offsetHeight).map((one) => one.id)"
    )
    address = tab.value("document.querySelector('[data-path]').textContent")
    assert address.startswith("file:///")
    assert address.endswith("/simple/")
    assert tab.value(shown) == ["gfx1250"]
    tab.value("location.hash = 'gfx1151'; new Promise((done) => setTimeout(done, 100))")
    assert tab.value(shown) == ["gfx1151"]
    tab.value("document.querySelector('input').focus()")
    tab.call("Input.insertText", text="rx 7900")
    links = (
        "[...document.querySelectorAll('a.gpu:not([hidden])')].map((one) => one.hash)"
    )
    assert tab.value(links) == ["#gfx1100"]
    tab.press("Enter", 13)
    assert tab.value(shown) == ["gfx1100"]
    for _ in range(60):
        tab.press("Tab", 9)
        if tab.value("document.activeElement.tagName") == "BUTTON":
            break
    assert tab.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.press("Enter", 13)
    assert "rocm7.3" in tab.value("getSelection().toString()")
    tab.value("location.hash = 'gfx701'; new Promise((done) => setTimeout(done, 100))")
    assert tab.value(shown) == []


def test_page_is_useful_without_scripts(tab: Tab) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.show(index_page(3), width=DESKTOP, dark=False)
        text = tab.value("document.body.innerText")
        assert "Instinct" in text
        assert "URL-of-this-page/simple/" in text
        assert "Find" not in text
        assert overflow(tab) == []
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
