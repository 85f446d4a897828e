"""`ci_build index history`: changes of an index, and the numbers of its nights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click
import cloup

from ci_build.cli.common import State, open_bucket, print_json
from ci_build.cli.options.shared_options import bucket_option, json_option, option
from core.report import print_table
from core.units import human
from promotion.index import operations
from promotion.index.ledger_state import EntryKind
from promotion.index.pages import tiers_text
from promotion.night_results import NightResult, night_results
from promotion.storage.object_keys import ReleasedIndex

_NIGHTS = 60
"""Number of nights that are listed."""


@cloup.command()
@click.argument("index")
@option("--nights", "List nights with sizes, results of gates, and promotions.")
@json_option
@bucket_option
@click.pass_obj
def history(
    state: State, /, index: str, bucket: str, *, nights: bool, as_json: bool
) -> None:
    """List the changes of INDEX, or its nights, newest first."""
    opened = open_bucket(bucket, state.reporter())
    if nights:
        _print_nights(night_results(opened, index, limit=_NIGHTS), as_json=as_json)
        return
    entries = [*operations.history(opened, ReleasedIndex(index=index))]
    if as_json:
        print_json(entries)
        return
    visible = {*entries[0].state.visible}
    rows = []
    for entry in entries:
        sets = ", ".join(map(str, entry.sets))
        content = ""
        if promoted := entry.promoted:
            sets = promoted.set_digest[:12]
            content = f"jax {promoted.jax_version}, ROCm {promoted.rocm_version}"
        elif entry.kind is EntryKind.ROLLBACK:
            sets = str(entry.to)
        rows.append(
            (
                str(entry.number),
                entry.time,
                entry.kind.value,
                sets,
                content,
                "yes" if entry.number in visible else "",
                entry.actor,
                entry.reason,
            )
        )
    print_table(("entry", "time", "what", "set", "of", "offered", "by", "reason"), rows)


def _print_nights(results: Sequence[NightResult], *, as_json: bool) -> None:
    """Print one line per night, or all numbers as JSON."""
    if as_json:
        print_json(results)
        return
    rows = []
    for night in results:
        checks = Counter[str]()
        for gate in night.gates:
            checks.update(gate.counts)
        state = "staged"
        if night.entry:
            state = f"entry {night.entry}"
            if not night.visible:
                state += ", hidden"
        rows.append(
            (
                night.time,
                f"jax {night.jax}, ROCm {night.rocm}" if night.jax else night.version,
                night.set.rpartition("/")[2][:12],
                state,
                tiers_text(night.tiers),
                human(sum(night.sizes.values())),
                *(str(checks[word]) for word in ("passed", "failed", "skipped")),
            )
        )
    columns = (
        "night",
        "of",
        "set",
        "promotion",
        "tiers",
        "wheels",
        "passed",
        "failed",
        "skipped",
    )
    print_table(columns, rows, numeric=(5, 6, 7, 8))
