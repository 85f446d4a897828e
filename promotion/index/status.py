"""status.json, for monitors and for whoever writes pages next, and the page for people; both from the ledger."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from promotion.evidence.evidence import TIME, time_of
from promotion.index.ledger import FIRST, LedgerEntry
from promotion.index.ledger_state import IndexState
from promotion.index.pages import tiers_text
from promotion.storage.keys import ReleasedIndex

SCHEMA_VERSION = 2
SHOWN = 50
"""So many sets, the newest, are told in full."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageRecord:
    """One project's pages as they were written.

    Attributes:
        sha256: of the JSON page.
        etags: of the HTML page and of the JSON page, as the store gave them.
    """

    sha256: str
    etags: tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """How far the pages are written.

    Attributes:
        number, ledger_sha256: the entry that they were written from.
        pages: project -> its pages.
        people: etag of the page for people; empty when there is none.
        rows: the newest visible sets, newest first.
        etag: of status.json itself; None when there is none.
    """

    number: int = 0
    ledger_sha256: str = FIRST
    pages: Mapping[str, PageRecord] = field(default_factory=dict)
    people: str = ""
    rows: Sequence[Mapping[str, Any]] = ()
    etag: str | None = None


def set_row(entry: LedgerEntry, state: IndexState) -> Mapping[str, Any]:
    """What is told of a set."""
    assert entry.promoted is not None
    promoted = entry.promoted
    evidence = sorted(name for name in promoted.files if name.startswith("evidence/") and name.endswith(".json"))
    return {
        "entry": entry.number,
        "digest": promoted.set_digest,
        "promoted": entry.time,
        "tier": promoted.tier,
        "tiers": dict(promoted.tiers),
        "jax": promoted.jax_version,
        "rocm": promoted.rocm_version,
        "pythons": list(promoted.python_versions),
        "policy": dict(promoted.policy),
        "evidence": evidence,
        "install": install_words(entry),
        **set_marks(entry.number, state),
    }


def set_marks(number: int, state: IndexState) -> Mapping[str, str]:
    """What a state says of a set."""
    return {"yanked": state.yanked.get(number, ""), "pinned": state.pinned.get(number, "")}


def install_words(entry: LedgerEntry) -> str:
    """What a person gives to pip, after the index: the wheels that nothing else in the set requires, and jax."""
    from promotion.index.pages import project_of

    assert entry.promoted is not None
    wheels = entry.promoted.wheels
    required = {project_of(text) for wheel in wheels for text in wheel.requires_dist}
    tops = {wheel.project: wheel.version for wheel in wheels if wheel.project not in required}
    words = {**tops, "jax": entry.promoted.jax_version}
    return " ".join(f"{project}=={version}" for project, version in words.items())


def stale_after(rows: Sequence[Mapping[str, Any]]) -> str:
    """When an index is stale unless a new set comes, UTC; empty when the policy of the last set has no limit."""
    days = rows[0]["policy"].get("stale_days") if rows else None
    last = time_of(rows[0]["promoted"]) if rows else None
    return (last + timedelta(days=days)).strftime(TIME) if last and days else ""


def dump_status(released: ReleasedIndex, snapshot: Snapshot, last: LedgerEntry, state: IndexState) -> bytes:
    """The text of status.json."""
    body = {
        "schema": SCHEMA_VERSION,
        "index": released.index,
        "entries": snapshot.number,
        "ledger_sha256": snapshot.ledger_sha256,
        "changed": {"time": last.time, "by": last.actor, "kind": last.kind.value, "reason": last.reason},
        "visible": len(state.visible),
        "last_set": snapshot.rows[0]["digest"] if snapshot.rows else "",
        "last_promoted": snapshot.rows[0]["promoted"] if snapshot.rows else "",
        "stale_after": stale_after(snapshot.rows),
        "quarantined": {str(number): reason for number, reason in sorted(state.quarantined.items())},
        "sets": list(snapshot.rows),
        "pages": {
            project: {"sha256": page.sha256, "etags": list(page.etags)}
            for project, page in sorted(snapshot.pages.items())
        },
        "people": snapshot.people,
    }
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()


def load_status(data: bytes, etag: str) -> Snapshot | None:
    """Read status.json; None when nobody can, since it can be made again from the ledger."""
    try:
        body = json.loads(data)
        if body["schema"] != SCHEMA_VERSION or type(body["entries"]) is not int or body["entries"] < 0:
            return None
        return Snapshot(
            number=body["entries"],
            ledger_sha256=str(body["ledger_sha256"]),
            pages={
                str(project): PageRecord(
                    sha256=str(page["sha256"]), etags=(str(page["etags"][0]), str(page["etags"][1]))
                )
                for project, page in body["pages"].items()
            },
            people=str(body["people"]),
            rows=tuple(dict(item) for item in body["sets"]),
            etag=etag,
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ccc;padding:.4rem;text-align:left;"
    "vertical-align:top}code{background:#f3f3f3;padding:.1rem .3rem;overflow-wrap:anywhere}.bad{color:#a00}"
)


_HERE = (
    'for (const place of document.querySelectorAll(".here"))'
    ' place.textContent = new URL("simple/", location.href).href;'
)
"""An index does not know where it is served; without this the reader puts the address in."""


def overview_page(released: ReleasedIndex, rows: Sequence[Mapping[str, Any]], last: LedgerEntry) -> bytes:
    """The page for people: sets, targets with tier and date, evidence, install lines, bypasses."""
    index = html.escape(released.index)
    sections = "".join(_section(item) for item in rows) or "<p>Nothing is offered.</p>"
    what = html.escape(f"{last.kind.value} {last.reason}".strip())
    stale = stale_after(rows)
    until = f" Stale after <time>{stale}</time>, unless a new set comes." if stale else ""
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>JAX for ROCm: {index}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>JAX for ROCm: {index}</h1>\n"
        f"<p>Last change: entry {last.number}, {what}, <time>{html.escape(last.time)}</time>.{until} "
        f'<a href="simple/">packages</a> <a href="status.json">status</a></p>\n{sections}'
        f"<script>{_HERE}</script>\n</body>\n</html>\n"
    )
    return text.encode()


def _section(item: Mapping[str, Any]) -> str:
    digest = html.escape(str(item["digest"]))
    tiers = html.escape(tiers_text(item["tiers"]))
    evidence = " ".join(
        f'<a href="sets/{digest}/{html.escape(name)}">{html.escape(name.removeprefix("evidence/"))}</a>'
        for name in item["evidence"]
    )
    bypasses = "".join(
        f'<p class="bad">Bypass {html.escape(str(entry))}</p>\n' for entry in item["policy"].get("bypasses", ())
    )
    attested = "".join(
        f"<tr><th>attested by</th><td>{html.escape(who)}: {len(names)} wheels</td></tr>\n"
        for who, names in item["policy"].get("attested", {}).items()
    )
    yanked = f'<p class="bad">Yanked: {html.escape(item["yanked"])}</p>\n' if item["yanked"] else ""
    title = html.escape(f"jax {item['jax']}, ROCm {item['rocm']}, Python {', '.join(item['pythons'])}")
    here = '<span class="here">&lt;this page&gt;simple/</span>'
    return (
        f'<h2 id="{digest}">{title}</h2>\n{yanked}{bypasses}'
        f"<p><code>pip install --extra-index-url {here} {html.escape(item['install'])}</code></p>\n<table>\n"
        f"<tr><th>set</th><td><code>{digest}</code>, entry {item['entry']}</td></tr>\n"
        f"<tr><th>promoted</th><td><time>{html.escape(item['promoted'])}</time></td></tr>\n"
        f"<tr><th>tested</th><td>{tiers}</td></tr>\n<tr><th>evidence</th><td>{evidence}</td></tr>\n{attested}</table>\n"
    )
