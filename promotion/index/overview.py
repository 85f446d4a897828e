"""The page of an index for people: GPUs with their commands, versions, evidence, history.

Everything on it comes from rows of status.json, from the newest set's ledger entry, and
from the files that promotions wrote beside the sets, so that a page costs the same for
any number of sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from core.frozen import frozen
from core.targets import load_table, sort_key
from promotion.index.install_commands import (
    InstallCommand,
    gpu_extras,
    install_commands,
)
from promotion.index.json_types import SetRow, StatusFile
from promotion.index.ledger_wheel import LedgerWheel
from promotion.index.page_diff import tier_rank
from promotion.index.set_summary import REPORT, SetContent, written_with
from promotion.storage.object_keys import SETS_FOLDER
from promotion.website.render import render


@frozen
class SupportedGpu:
    """A gfx target that an index supports, with the newest set for it.

    Attributes:
        tier: tier of the target in the newest set.
        failing: how many of its programs fail, and which.
        tested: the newest set that passed tests on a GPU of this target, or None.
        extras: extras that install the ROCm for this target.
    """

    target: str
    product: str
    tier: str
    failing: str
    row: SetRow
    tested: SetRow | None
    extras: tuple[str, ...]
    commands: tuple[InstallCommand, ...]

    @property
    def group(self) -> str:
        """The group of the GPU on the page, which orders the groups by name."""
        first = self.product.partition(" ")[0]
        if "APU" in self.product:
            return "Ryzen"  # also integrated GPUs that are named Radeon
        return first if first in ("Instinct", "Radeon") else "Various"


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
    gpus = [*_gpus(offered)]
    sets = [*status["sets"], *status["hidden"]]
    return render(
        "index.html",
        {
            "title": f"JAX for ROCm: {status['index']}",
            "status": status,
            "last": status["history"][0],
            "gpus": gpus,
            "worst": sorted(
                gpus, key=lambda gpu: (not gpu.failing, tier_rank(gpu.tier))
            ),
            "rows": sorted(sets, key=lambda row: row["entry"], reverse=True),
            "newest": newest,
            "wheels": [*_wheels(wheels, summary)],
            "summary": summary,
            "files": _files(newest["files"] if newest else ()),
            "report_of": _report_of,
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
    targets = {target for row in offered for target in row["tiers"]}
    for target in sorted(targets, key=natural_key, reverse=True):
        having = [row for row in offered if target in row["tiers"]]
        row = having[0]
        info = known.get(target.partition(":")[0])
        covers = info.covers if info else (target,)
        product = info.product if info else ""
        if not product and covers != (target,):
            product = f"runs on {', '.join(covers)}"
        tested = [one for one in having if one["tiers"][target] == "device"]
        yield SupportedGpu(
            target=target,
            product=product,
            tier=row["tiers"][target],
            failing=row["policy"].get("failing", {}).get(target, ""),
            row=row,
            tested=tested[0] if tested else None,
            extras=gpu_extras(row, covers),
            commands=tuple(install_commands(row, covers)),
        )


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
