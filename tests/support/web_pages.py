"""Pages for people with many sets, and with hostile text in every field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from html import unescape
from html.parser import HTMLParser
from types import MappingProxyType
from typing import Any

from core.model import Evidence, Finding, Outcome, Severity, WheelSet
from core.number_ranges import NumberRanges
from core.targets import load_table
from promotion.compatibility.module_support import CheckOutcome, EvidenceChecks
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.index.index_status import status_of
from promotion.index.ledger import LedgerEntry
from promotion.index.ledger_state import EntryKind, IndexState
from promotion.index.overview import newest_row, overview_page
from promotion.index.set_summary import ModuleTest, SetContent
from promotion.set_report import report_page
from promotion.storage.object_keys import ReleasedIndex, StagedSet
from tests.support.sets import (
    evidence,
    ledger_wheel,
    promoted_set,
    promotion_entry,
    wheel,
    wheel_set,
)

INDEX = ReleasedIndex(index="multi-arch")
HOSTILE = (
    "<script>document.title='run'</script><img src=x"
    " onerror=\"document.title='run'\">'\"\u202egnp.\u2066 " + "w" * 300
)
"""Text that would run, escape an attribute, reverse its surroundings, and overflow."""
DEVICE = "device"
COMPILED = "compiled"
STRUCTURE = "structure"
TARGETS = tuple(
    name for name, info in load_table().targets.items() if len(info.covers) == 1
)


class Elements(HTMLParser):
    """Parser that collects tags, attributes, texts of scripts and styles, and all other text."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self.text = ""
        self._inside = ""
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in self.texts:
            self.texts[self._inside].append(data)
        else:
            self.text += data

    def values(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.tags if name in attributes]


PANEL = re.compile(r'<div class="panel" id="([^"]*)">(.*?)</li>', re.DOTALL)
"""Panel of a gfx target on the page of an index."""


def sections(page: bytes) -> dict[str, str]:
    """Return gfx target -> text of its panel, with the commands."""
    found = PANEL.findall(page.decode())
    return {target: unescape(re.sub(r"<[^>]*>", "", body)) for target, body in found}


def entry_of_set(
    number: int, last: int, targets: tuple[str, ...] = TARGETS, text: str = ""
) -> LedgerEntry:
    """Return the promotion of a set with wheels for three Pythons.

    `text` replaces its free texts.
    """
    rocm = text or f"7.{number // 10}.{number % 10}"
    version = f"0.10.2+rocm7.{number}"
    names = [f"jax_rocm7_pjrt-{version}-py3-none-manylinux_2_28_x86_64.whl"]
    names += [
        f"jax_rocm7_plugin-{version}-{tag}-{tag}-manylinux_2_28_x86_64.whl"
        for tag in ("cp311", "cp312", "cp313")
    ]
    wheels = [
        ledger_wheel(
            name.split("-")[0].replace("_", "-"),
            version,
            filename=name,
            size=150_000_000 + number * 10**6,
            requires_dist=(f"jax-rocm7-pjrt=={version}",) if "plugin" in name else (),
        )
        for name in names
    ]
    tiers = {
        target: (STRUCTURE, COMPILED, DEVICE)[position % 3]
        for position, target in enumerate(targets)
    }
    files = [
        "wheels.json",
        "pylock.toml",
        "sbom.cdx.json",
        "constraints.txt",
        "SHA256SUMS",
        "summary-0123456789abcdef.json",
        "report-0123456789abcdef.html",
        "requirements-locked.txt",
        *(f"evidence/compile/{target}/{number:016}.json" for target in targets),
    ]
    policy: dict[str, Any] = {"channel": text or "release", "stale_days": 14}
    if text:
        policy |= {"exceptions": [text], "attested": {text: [text]}}
    made = promoted_set(
        *wheels,
        set_digest=f"{number:064x}",
        rocm_version=rocm,
        jax_version=text or "0.10.2",
        python_versions=("3.11", "3.12", "3.13"),
        tiers={**tiers, **({text: text} if text else {})},
        policy=policy,
        files=dict.fromkeys([*files, *([text] if text else [])], "0" * 64),
    )
    numbers = NumberRanges.of(range(1, last + 1))
    state = IndexState(held=numbers, offered=numbers)
    time = f"2026-02-{number % 28 + 1:02}T03:04:05Z"
    return promotion_entry(
        number, made, actor=text or "releases", state=state, time=time
    )


def summary_of_set(entry: LedgerEntry, text: str = "") -> SetContent:
    """Return the content of a set."""
    assert entry.promoted is not None
    tiers = entry.promoted.tiers
    modules = (
        ModuleTest(
            name="jax.numpy",
            description="Arrays",
            works=dict.fromkeys([*tiers][:6], COMPILED),
            unsupported=(),
        ),
        ModuleTest(
            name=text or "jax.lax.linalg",
            description=text or "Linear algebra",
            works={},
            unsupported=(text,),
        ),
    )
    return SetContent(
        wheels={one.filename: tuple(tiers) for one in entry.promoted.wheels},
        modules=modules,
    )


def index_page(
    sets: int = 12,
    targets: tuple[str, ...] = TARGETS,
    text: str = "",
    changes: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    **state: Any,
) -> bytes:
    """Return the page of an index with some sets.

    Args:
        changes: number of a set -> changed fields of its `PromotedSet`.
        state: fields of the last state.
    """
    entries = [
        entry_of_set(number, sets, targets, text) for number in range(1, sets + 1)
    ]
    for number, fields in changes.items():
        made = entries[number - 1]
        assert made.promoted is not None
        entries[number - 1] = replace(made, promoted=replace(made.promoted, **fields))
    last = LedgerEntry(
        number=sets + 1,
        previous="",
        time="2026-03-01T00:00:00Z",
        kind=EntryKind.PIN,
        state=replace(entries[-1].state, **state),
        actor=text or "operator",
        reason=text or "tested by users",
        sets=(sets,),
        index=INDEX.index,
    )
    entries.append(last)

    def entry_of(number: int) -> LedgerEntry:
        return entries[number - 1]

    status = status_of(INDEX, last, "0" * 64, partial(map, entry_of))
    newest = newest_row(status)
    if newest is None:
        return overview_page(status, (), None)
    entry = entry_of(newest["entry"])
    assert entry.promoted is not None
    return overview_page(
        status, entry.promoted.wheels, summary_of_set(entry, text=text)
    )


def hostile_index_page() -> bytes:
    """Return the page of an index with hostile text in every field that takes text."""
    marks = {
        "yanked": {2: HOSTILE},
        "quarantined": {3: HOSTILE},
        "pinned": {4: HOSTILE},
    }
    return index_page(
        5, TARGETS[:3], HOSTILE, {4: {"python_versions": (HOSTILE,)}}, **marks
    )


def failing_evidence(text: str = "") -> EvidenceChecks:
    """Return a run on a GPU with a passed, a failed, a flaky, and a known failing test."""
    results = tuple(
        TestResult(
            id=f"tests/{word}_test.py::{text or 'T'}::test_{word}",
            verdict=verdict,
            message=text or f"E {word}",
        )
        for word, verdict in (
            ("good", TestVerdict.PASSED),
            ("bad", TestVerdict.FAILED),
            ("shaky", TestVerdict.FLAKY),
        )
    )
    found: Evidence = evidence(
        gate="device",
        target=text or "gfx942",
        outcome=Outcome.FAILED,
        machine=text or "mi300x",
        counts={"passed": 1, "failed": 1},
        findings=(
            Finding(
                code=text or "test-failed",
                severity=Severity.ERROR,
                message=text or "A test failed.",
                remedy=text or "Repair it.",
                member=text,
            ),
        ),
    )
    known = CheckOutcome(
        name=text or "tests/x_test.py::known",
        outcome="known",
        reason=text or "upstream issue",
    )
    return EvidenceChecks(evidence=found, checks=(known,), results=results)


def commands(page: bytes, url: str = "URL-of-this-page/") -> dict[str, dict[str, str]]:
    """Return gfx target -> name -> command of a page at a URL, as its users read it.

    The bundle has the target "".
    """
    text = page.decode()
    found = dict[str, dict[str, str]]()
    parts = PANEL.findall(text)
    for target, part in (*parts, ("", text.rpartition('<h2 id="versions">')[2])):
        blocks = re.findall(
            r"<h[34]>([^<]*)</h[34]>(?:\s*<p>[^<]*</p>)?\s*<div[^>]*><pre[^>]*><code>(.*?)</code>",
            part,
        )
        found[target] = {
            name: (
                unescape(re.sub("<[^>]*>", "", body)).replace("URL-of-this-page/", url)
            )
            for name, body in blocks
        }
    return found


def set_page(
    text: str = "", more: Mapping[str, EvidenceChecks] = MappingProxyType({})
) -> bytes:
    """Return the report of a set; `more` is further evidence by key."""
    made: WheelSet = wheel_set(
        index="multi-arch",
        jax_version=text or "0.10.2",
        rocm_version=text or "7.2.0",
        wheels=(wheel(f"{text or 'x'}.whl", text or "x", "1"), *wheel_set().wheels),
        files=dict.fromkeys(("pylock.toml", *([text] if text else [])), "0" * 64),
    )
    passed = evidence(counts={"passed": 40})
    checks = {
        "compile.json": EvidenceChecks(evidence=passed, checks=()),
        "device.json": failing_evidence(text),
        **more,
    }
    entry = entry_of_set(1, 1, TARGETS[:3], text)
    numbers = summary_of_set(entry, text)
    summary = replace(
        numbers, wheels={one.filename: ("gfx942", text) for one in made.wheels}
    )
    policy = {"exceptions": [text or "an exception"]}
    return report_page(
        StagedSet(index="multi-arch", digest="ab" * 32),
        made,
        {text or "gfx942": text or DEVICE},
        policy,
        checks,
        summary,
        (),
    )
