"""Write status.json, for monitors and for the next publisher, and the overview page for people."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from promotion.evidence.evidence import TIME, time_of
from promotion.index.ledger import LedgerEntry
from promotion.index.ledger_state import IndexState
from promotion.index.pages import install_requirements, tiers_text
from promotion.index.reader import STATUS_SCHEMA, Snapshot
from promotion.storage.keys import ReleasedIndex

MAX_ROWS = 50
"""Number of sets with a row in status.json and on the overview page, newest first."""


def set_row(entry: LedgerEntry, state: IndexState) -> Mapping[str, Any]:
    """Return the row of a set in status.json."""
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
        "install": " ".join(install_requirements(promoted.wheels, {"jax": promoted.jax_version})),
        **set_marks(entry.number, state),
    }


def set_marks(number: int, state: IndexState) -> Mapping[str, str]:
    """Return the reasons of the yank and the pin of a set; empty without a mark."""
    return {"yanked": state.yanked.get(number, ""), "pinned": state.pinned.get(number, "")}


def stale_after(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the UTC time when an index becomes stale; empty if its policy has no limit."""
    days = rows[0]["policy"].get("stale_days") if rows else None
    last = time_of(rows[0]["promoted"]) if rows else None
    return (last + timedelta(days=days)).strftime(TIME) if last and days else ""


def dump_status(released: ReleasedIndex, snapshot: Snapshot, last: LedgerEntry, state: IndexState) -> bytes:
    """Return the text of status.json."""
    body = {
        "schema": STATUS_SCHEMA,
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
        "people": snapshot.overview,
        "tree": {"size": snapshot.tree.size, "roots": [root.hex() for root in snapshot.tree.roots]},
    }
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ccc;padding:.4rem;text-align:left;"
    "vertical-align:top}code{background:#f3f3f3;padding:.1rem .3rem;overflow-wrap:anywhere}.bad{color:#a00}"
)


_HERE = (
    'for (const place of document.querySelectorAll(".here"))'
    ' place.textContent = new URL("simple/", location.href).href;'
)
"""Script that inserts the URL of the index, which is unknown when the page is written."""


def overview_page(released: ReleasedIndex, rows: Sequence[Mapping[str, Any]], last: LedgerEntry) -> bytes:
    """Return the overview page: sets, tested targets, dates, evidence, install commands, bypasses and waivers."""
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


def overview_entry(page: bytes) -> int:
    """Return the number of the ledger entry that an overview page was written from; 0 if it names none."""
    found = re.search(rb"<p>Last change: entry (\d{1,8}),", page)
    return int(found[1]) if found else 0


def _section(item: Mapping[str, Any]) -> str:
    digest = html.escape(str(item["digest"]))
    tiers = html.escape(tiers_text(item["tiers"]))
    evidence = " ".join(
        f'<a href="sets/{digest}/{html.escape(name)}">{html.escape(name.removeprefix("evidence/"))}</a>'
        for name in item["evidence"]
    )
    exceptions = "".join(
        f'<p class="bad">{kind} {html.escape(str(entry))}</p>\n'
        for kind, name in (("Bypass", "bypasses"), ("Waiver", "waivers"))
        for entry in item["policy"].get(name, ())
    )
    attested = "".join(
        f"<tr><th>attested by</th><td>{html.escape(who)}: {len(names)} wheels</td></tr>\n"
        for who, names in item["policy"].get("attested", {}).items()
    )
    yanked = f'<p class="bad">Yanked: {html.escape(item["yanked"])}</p>\n' if item["yanked"] else ""
    title = html.escape(f"jax {item['jax']}, ROCm {item['rocm']}, Python {', '.join(item['pythons'])}")
    here = '<span class="here">&lt;this page&gt;simple/</span>'
    return (
        f'<h2 id="{digest}">{title}</h2>\n{yanked}{exceptions}'
        f"<p><code>pip install --extra-index-url {here} {html.escape(item['install'])}</code></p>\n<table>\n"
        f"<tr><th>set</th><td><code>{digest}</code>, entry {item['entry']}</td></tr>\n"
        f"<tr><th>promoted</th><td><time>{html.escape(item['promoted'])}</time></td></tr>\n"
        f"<tr><th>tested</th><td>{tiers}</td></tr>\n<tr><th>evidence</th><td>{evidence}</td></tr>\n{attested}</table>\n"
    )
