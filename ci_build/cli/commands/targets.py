"""The command `ci_build targets`."""

from __future__ import annotations

import cloup

from ci_build.cli.common import print_json
from ci_build.cli.options.shared_options import option
from core import targets as table
from core.report import print_table


@cloup.command()
@option("--json", "Print lists and table as JSON.", name="as_json")
def targets(*, as_json: bool) -> None:
    """List GPU targets, and whether compiler, wheels, gates and AITER cover them."""
    if as_json:
        print_json({**table.lists(), "targets": table.table()})
        return
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
    print_table(
        (
            "target",
            "product",
            "architecture",
            "compiler",
            "default wheels",
            "gated",
            "AITER",
        ),
        rows,
    )
