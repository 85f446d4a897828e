"""`ci_build targets`."""

from __future__ import annotations

import click
import cloup

from ci_build.cli.common import print_json


@cloup.command()
@click.option("--json", "as_json", is_flag=True, help="Print the lists and the table as JSON.")
def targets(*, as_json: bool) -> None:
    """List gfx targets: which the compiler supports, which the default wheels hold, which are gated."""
    from core import targets as table

    if as_json:
        print_json({**table.lists(), "targets": table.table()})
        return
    from core.report import print_table

    marks = {True: "yes", False: ""}
    rows = [
        (
            row.name,
            row.product,
            row.architecture,
            marks[row.xla],
            marks[row.default],
            marks[row.gated],
            marks[row.aiter],
        )
        for row in table.table()
    ]
    print_table(("target", "product", "architecture", "compiler", "default wheels", "gated", "AITER"), rows)
