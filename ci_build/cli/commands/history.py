"""The command `ci_build index history`."""

from __future__ import annotations

import click
import cloup

from ci_build.cli.common import State, open_bucket, print_json
from ci_build.cli.options.shared_options import bucket_option, json_option
from core.report import print_table
from promotion.index import operations
from promotion.index.ledger_state import EntryKind
from promotion.storage.object_keys import ReleasedIndex


@cloup.command()
@click.argument("index")
@json_option
@bucket_option
@click.pass_obj
def history(state: State, /, index: str, bucket: str, *, as_json: bool) -> None:
    """List the changes of INDEX, newest first."""
    opened = open_bucket(bucket, state.reporter())
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
