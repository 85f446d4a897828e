"""The command `ci_build inspect`."""

from __future__ import annotations

import click
import cloup

from ci_build.cli.common import State, host_runner, print_json
from ci_build.cli.options.shared_options import json_option, option
from core.model import RocmVersion


@cloup.command()
@click.argument("wheels", nargs=-1, required=True, metavar="WHEEL|DIR|URL…")
@option("--targets GFX,…|native", "Exact targets that the device code must have.")
@option(
    "--rocm-version X.Y.Z", "ROCm whose libraries the wheels may need.  [default: any]"
)
@json_option
@click.pass_obj
def inspect(
    state: State,
    wheels: tuple[str, ...],
    targets: str | None,
    rocm_version: str | None,
    *,
    as_json: bool,
) -> None:
    """Report contents, targets, RUNPATH, NEEDED, symbols, metadata and findings of wheels."""
    # Start-up time: it loads auditwheel.
    from ci_build.wheelset import inspected_wheels

    reporter = state.reporter()
    report = inspected_wheels.inspect(
        wheels,
        expected=targets,
        rocm=RocmVersion(text=rocm_version) if rocm_version else None,
        progress=reporter,
        runner=host_runner(reporter),
    )
    if as_json:
        print_json(report)
    else:
        inspected_wheels.show(report)
    inspected_wheels.raise_for_errors(report)
