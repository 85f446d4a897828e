"""The page of an index for people: install commands by GPU, content, history, compatibility and plots.

Everything on it comes from rows of status.json, from the newest set's ledger entry, and from the files that promotions
wrote beside the sets, so that a page costs the same for any number of sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.model import PYLOCK
from core.targets import load_table, sort_key
from promotion.index.ledger import LedgerEntry
from promotion.index.summary import REPORT, REQUIREMENTS, SetSummary, written_with
from promotion.storage.keys import SETS_FOLDER, ReleasedIndex
from promotion.website.plots import Chart, stacked_bars, tier_grid
from promotion.website.render import render

TIERS = {
    "device": "JAX’s tests ran on a GPU of this target.",
    "compiled": "JAX programs were compiled for this target without a GPU. No GPU of this target has run this release.",
    "structure": "The wheels have code for this target. Nothing was compiled for it, and no GPU has run this release.",
    "none": "The wheels have code for this target, but nothing has tested it.",
}
"""Tier -> its meaning in a sentence."""
_DOCKER_PYTHON = "3.12"
"""Python of Ubuntu 24.04, the system of AMD's images."""
_MOST_EVIDENCE = 10
_RELEASE = re.compile(r"(\d+\.\d+)(?:\.0|(\.\d+))")


@dataclass(frozen=True, kw_only=True, slots=True)
class Here:
    """A word of a command that contains a URL of the index, which is unknown when the page is written."""

    path: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command that installs a set.

    Attributes:
        words: words of the command. Empty if there is none; then `note` has the reason.
    """

    name: str
    words: tuple[str | Here, ...]
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A gfx target that an index supports, with the newest set for it."""

    target: str
    product: str
    tier: str
    sentence: str
    row: Mapping[str, Any]
    commands: tuple[Command, ...]


def overview_page(
    released: ReleasedIndex,
    *,
    rows: Sequence[Mapping[str, Any]],
    hidden: Sequence[Mapping[str, Any]],
    history: Sequence[Mapping[str, Any]],
    last: LedgerEntry,
    stale: str,
    newest: tuple[LedgerEntry, SetSummary | None] | None,
) -> bytes:
    """Return the page.

    Args:
        rows: the newest visible sets, newest first; see `status.set_row`.
        hidden: the newest quarantined sets.
        history: the newest ledger entries, newest first; see `status.history_row`.
        last: the newest ledger entry.
        stale: time when the index becomes stale, or empty.
        newest: entry and numbers of the set whose content is shown.
    """
    offered = [row for row in rows if not row["yanked"]]
    return render(
        "index.html",
        {
            "title": f"JAX for ROCm: {released.index}",
            "index": released.index,
            "last": last,
            "stale": stale,
            "gpus": [*_gpus(offered)],
            "tiers": TIERS,
            "rows": rows,
            "hidden": hidden,
            "history": history,
            "newest": newest[0] if newest else None,
            "wheels": [*_wheels(newest)],
            "summary": newest[1] if newest else None,
            "files": _files([*newest[0].promoted.files]) if newest and newest[0].promoted else (),
            "report_of": _report_of,
            "by_tier": _by_tier,
            "most_evidence": _MOST_EVIDENCE,
            "sets": SETS_FOLDER,
            "charts": charts(rows),
        },
    )


def overview_entry(page: bytes) -> int:
    """Return the number of the ledger entry that an overview page was written from; 0 if it names none."""
    found = re.search(rb"<p>Last change: entry (\d{1,8}),", page)
    return int(found[1]) if found else 0


def natural_key(target: str) -> tuple[int, object]:
    """Return the key of the natural order of gfx targets; words that are none come last."""
    try:
        return 0, sort_key(target)
    except (ValueError, IndexError, TypeError):
        return 1, target


def _gpus(offered: Sequence[Mapping[str, Any]]) -> Iterator[Gpu]:
    """Yield each target with the newest set for it; of its sets, users without a pin get the highest version."""
    first: dict[str, Mapping[str, Any]] = {}
    for row in offered:
        for target in row["tiers"]:
            first.setdefault(target, row)
    known = load_table().targets
    for target in sorted(first, key=natural_key):
        row = first[target]
        info = known.get(target.partition(":")[0])
        covered = "runs on " + ", ".join(info.covers) if info and len(info.covers) > 1 else ""
        tier = row["tiers"][target]
        yield Gpu(
            target=target,
            product=(info.product or covered) if info else "",
            tier=tier,
            sentence=TIERS.get(tier, TIERS["none"]),
            row=row,
            commands=tuple(_commands(row)),
        )


def _commands(row: Mapping[str, Any]) -> Iterator[Command]:
    """Yield the commands that install a set, without a mark of its own: yanked sets have none."""
    simple, needs = Here(path="simple/"), tuple(row["install"].split())
    yield Command(name="pip", words=("pip", "install", "--extra-index-url", simple, *needs))
    yield Command(name="uv", words=("uv", "pip", "install", "--extra-index-url", simple, *needs))
    locks = [name for name in row["files"] if name.startswith(REQUIREMENTS)]
    versions = sorted((name.removeprefix(REQUIREMENTS).removesuffix(".txt") for name in locks), key=_version_key)
    if versions:
        lock = f"{SETS_FOLDER}/{row['digest']}/{REQUIREMENTS}{versions[-1]}.txt"
        words = ("pip", "install", "--require-hashes", "--no-deps", "--extra-index-url", simple, "-r", Here(path=lock))
        others = f" Other files: {', '.join(versions[:-1])}." if versions[:-1] else ""
        note = f"For Python {versions[-1]}; pip accepts no other bytes than the tested ones.{others}"
        yield Command(name="pip, hash-locked", words=words, note=note)
    else:
        yield Command(name="pip, hash-locked", words=(), note=f"This set has no {PYLOCK}, so no hashes to lock to.")
    yield _docker(row, needs)


def _docker(row: Mapping[str, Any], needs: Sequence[str]) -> Command:
    release = _RELEASE.fullmatch(row["rocm"])
    if release is None or _DOCKER_PYTHON not in row["pythons"]:
        own = f"ci_build images build runtime {row['digest'][:12]}"
        return Command(name="Docker", words=(), note=f"AMD has no image of this ROCm and Python. Build one: {own}")
    image = f"docker.io/rocm/dev-ubuntu-24.04:{release[1]}{release[2] or ''}-complete"
    return Command(
        name="Docker",
        words=(
            "docker", "run", "--rm", "-it", "--device=/dev/kfd", "--device=/dev/dri", image, "sh", "-c",
            "'apt-get update && apt-get install -y python3-venv && python3 -m venv /jax &&",
            "/jax/bin/pip install --extra-index-url", Here(path="simple/"), *needs, "&&",
            "/jax/bin/python -c \"import jax; print(jax.devices())\"'",
        ),
        note=f"AMD’s image with ROCm {row['rocm']} and Python {_DOCKER_PYTHON}; the last words print the GPUs.",
    )  # fmt: skip


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _wheels(newest: tuple[LedgerEntry, SetSummary | None] | None) -> Iterator[Mapping[str, Any]]:
    """Yield name, size, link and targets of each wheel; targets are unknown in sets of older versions."""
    if newest is None or newest[0].promoted is None:
        return
    targets = newest[1].wheels if newest[1] else {}
    for wheel in sorted(newest[0].promoted.wheels, key=lambda wheel: wheel.filename):
        yield {
            "wheel": wheel,
            "href": f"packages/{wheel.project}/{wheel.filename}",
            "targets": targets.get(wheel.filename),
        }


def _files(names: Sequence[str]) -> tuple[str, ...]:
    """Return the files of a set beside its wheels, without evidence and debug files."""
    return tuple(sorted(name for name in names if "/" not in name and not name.endswith(".log")))


def _report_of(row: Mapping[str, Any]) -> str:
    """Return the link to the report of a set; empty for a set that an older version promoted."""
    name = written_with(REPORT, row["files"])
    return f"{SETS_FOLDER}/{row['digest']}/{name}" if name else ""


def _by_tier(row: Mapping[str, Any], tier: str) -> tuple[str, ...]:
    """Return the targets of a set that were tested at a tier; unknown tiers count as none."""
    found = (target for target, other in row["tiers"].items() if (other if other in TIERS else "none") == tier)
    return tuple(sorted(found, key=natural_key))


def charts(rows: Sequence[Mapping[str, Any]]) -> tuple[Chart, ...]:
    """Return the plots over the visible sets, oldest first; a plot without values is omitted."""
    sets = [(str(row["entry"]), row) for row in reversed(rows)]
    figures = [(label, row["figures"]) for label, row in sets]
    found: list[Chart] = []
    for title, note, name, text in (
        ("Wheel size by target", "Unpacked device code of all wheels of a set.", "code", _megabytes),
        ("Tests on GPUs", "Tests that passed, failed, or failed first and then passed (flaky).", "tests", _count),
        ("Gate times", "Duration of each gate, all targets together.", "gates", _minutes),
    ):
        values = [(label, one.get(name, {})) for label, one in figures]
        used = {key for _, one in values for key in one}
        order = [key for key in ("passed", "failed", "flaky") if key in used] if name == "tests" else sorted(used)
        if name == "code":
            order.sort(key=natural_key)
        if order:
            found.append(stacked_bars(title, note, values, order, text))
    tiers = [(label, row["tiers"]) for label, row in sets]
    targets = sorted({target for _, one in tiers for target in one}, key=natural_key)
    if targets:
        note = "How strongly each set was tested on each target."
        found.insert(1, tier_grid("Tier by target", note, tiers, targets))
    return tuple(found)


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.0f} MB" if size >= 1e7 or not size else f"{size / 1e6:.1f} MB"


def _count(number: float) -> str:
    return f"{number:.0f}"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 600 else f"{seconds:.0f} s"
