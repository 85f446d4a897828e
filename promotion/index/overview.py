"""The page of an index for people: install commands by GPU, content, history and compatibility.

Everything on it comes from rows of status.json, from the newest set's ledger entry, and
from the files that promotions wrote beside the sets, so that a page costs the same for
any number of sets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from packaging.version import InvalidVersion, Version

from core.frozen import frozen
from core.targets import load_table, sort_key
from promotion.index.install_commands import InstallCommand, install_commands
from promotion.index.json_types import SetRow, StatusFile
from promotion.index.ledger_wheel import LedgerWheel
from promotion.index.set_summary import REPORT, SetContent, written_with
from promotion.storage.object_keys import SETS_FOLDER
from promotion.website.render import render

TIERS = {
    "device": "Tests of JAX passed on a GPU of this target.",
    "compiled": (
        "JAX programs were compiled for this target without a GPU. No GPU of this"
        " target ran this set."
    ),
    "structure": (
        "The wheels have code for this target. No program was compiled for it, and no"
        " GPU ran this set."
    ),
    "none": (
        "The wheels have code for this target, but nothing has tested it. No GPU ran"
        " this set."
    ),
}
"""Tier -> its meaning in a sentence."""
ANSWERS = {
    "device": "tested on a GPU",
    "compiled": "compiled only, no GPU ran it",
    "structure": "has code, no GPU ran it",
    "none": "not tested, no GPU ran it",
}
"""Tier -> whether a GPU works, in a few words."""


@frozen
class SupportedGpu:
    """A gfx target that an index supports, with the newest set for it.

    Attributes:
        tier: tier of the target in the newest set.
        since: oldest JAX release with wheels for the target.
        tested: the newest set that passed tests on a GPU of this target, or None.
    """

    target: str
    product: str
    tier: str
    row: SetRow
    since: str
    tested: SetRow | None
    commands: tuple[InstallCommand, ...]


@frozen
class Span:
    """The oldest and newest JAX release offered with a Python, a ROCm or a wheel."""

    name: str
    since: str
    newest: str


def newest_row(status: StatusFile) -> SetRow | None:
    """Return the newest visible set that is not yanked."""
    return next((row for row in status["sets"] if not row["yanked"]), None)


def overview_page(
    status: StatusFile, wheels: Iterable[LedgerWheel], summary: SetContent | None
) -> bytes:
    """Return the page.

    Args:
        wheels: wheels of the newest set.
        summary: content of the newest set; None if it is lost.
    """
    offered = [row for row in status["sets"] if not row["yanked"]]
    newest = newest_row(status)
    return render(
        "index.html",
        {
            "title": f"JAX for ROCm: {status['index']}",
            "status": status,
            "last": status["history"][0],
            "gpus": [*_gpus(offered)],
            "tiers": TIERS,
            "answers": ANSWERS,
            "spans": [*_spans(offered)],
            "older": status["visible"] > len(status["sets"]),
            "newest": newest,
            "wheels": [*_wheels(wheels, summary)],
            "summary": summary,
            "files": _files(newest["files"] if newest else ()),
            "report_of": _report_of,
            "by_tier": _by_tier,
            "sets": SETS_FOLDER,
        },
    )


def overview_entry(page: bytes) -> int:
    """Return the number of the ledger entry that an overview page was written from.

    0 if it names none.
    """
    found = re.search(rb"<p>Last change: entry (\d{1,8}),", page)
    return int(found[1]) if found else 0


def natural_key(target: str) -> tuple[int, object]:
    """Return the key of the natural order of gfx targets; words that are none come last."""
    try:
        return 0, sort_key(target)
    except (ValueError, IndexError, TypeError):
        return 1, target


def _gpus(offered: Sequence[SetRow]) -> Iterator[SupportedGpu]:
    """Yield each target with the newest set for it.

    Of its sets, users without a pin get the highest version.
    """
    known = load_table().targets
    since = {
        span.name: span.since for span in _releases(offered, lambda row: row["tiers"])
    }
    for target in sorted(since, key=natural_key):
        having = [row for row in offered if target in row["tiers"]]
        info = known.get(target.partition(":")[0])
        covered = (
            "runs on " + ", ".join(info.covers)
            if info and info.covers != (target,)
            else ""
        )
        tier = having[0]["tiers"][target]
        yield SupportedGpu(
            target=target,
            product=(info.product or covered) if info else "",
            tier=tier if tier in TIERS else "none",
            row=having[0],
            since=since[target],
            tested=next(
                (row for row in having if row["tiers"][target] == "device"), None
            ),
            commands=tuple(
                install_commands(having[0], info.covers if info else (target,))
            ),
        )


def _spans(offered: Sequence[SetRow]) -> Iterator[Span]:
    """Yield the JAX releases of each wheel that users name, each Python and each ROCm."""

    def wheels(row: SetRow) -> list[str]:
        words = [*row["install"].split(), *row["optional"].split()]
        return [
            f"Wheel {name}"
            for word in words
            if (name := word.partition("==")[0]) != "jax"
        ]

    yield from _releases(offered, wheels)
    yield from _releases(
        offered, lambda row: [f"Python {version}" for version in row["pythons"]]
    )
    yield from _releases(offered, lambda row: [f"ROCm {row['rocm']}"])


def _releases(
    offered: Sequence[SetRow],
    names_of: Callable[[SetRow], Iterable[str]],
) -> Iterator[Span]:
    """Yield the oldest and newest JAX release per name, in the names' order."""
    found: dict[str, list[str]] = {}
    for row in offered:
        for name in names_of(row):
            found.setdefault(name, []).append(row["jax"])
    for name in sorted(
        found,
        key=lambda name: [(len(part), part) for part in re.findall(r"\d+|\D+", name)],
    ):
        yield Span(
            name=name,
            since=min(found[name], key=_release_key),
            newest=max(found[name], key=_release_key),
        )


def _release_key(version: str) -> tuple[int, Version | str]:
    """Return the key of the order of releases; texts that are no version come first."""
    try:
        return 1, Version(version)
    except InvalidVersion:
        return 0, version


def _wheels(
    wheels: Iterable[LedgerWheel], summary: SetContent | None
) -> Iterator[Mapping[str, Any]]:
    """Yield name, size, digest, link and targets of each wheel."""
    targets = summary.wheels if summary else {}
    for wheel in sorted(wheels, key=lambda wheel: wheel.filename):
        yield {
            "filename": wheel.filename,
            "size": wheel.size,
            "sha256": wheel.sha256,
            "href": f"packages/{wheel.project}/{wheel.filename}",
            "targets": targets.get(wheel.filename),
        }


def _files(names: Iterable[str]) -> tuple[str, ...]:
    """Return the files of a set beside its wheels, without evidence and debug files."""
    return tuple(
        sorted(name for name in names if "/" not in name and not name.endswith(".log"))
    )


def _report_of(row: SetRow) -> str:
    """Return the link to the report of a set; empty if it has none."""
    name = written_with(REPORT, row["files"])
    return f"{SETS_FOLDER}/{row['digest']}/{name}" if name else ""


def _by_tier(row: SetRow, tier: str) -> tuple[str, ...]:
    """Return the targets of a set that were tested at a tier; unknown tiers count as none."""
    found = (
        target
        for target, other in row["tiers"].items()
        if (other if other in TIERS else "none") == tier
    )
    return tuple(sorted(found, key=natural_key))
