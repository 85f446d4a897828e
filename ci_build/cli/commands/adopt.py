"""The command `ci_build set adopt`."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, print_json
from ci_build.cli.options.shared_options import PATH, json_option, option
from core.model import RocmVersion
from core.report import print_line


@cloup.command()
@click.argument("wheels", nargs=-1, required=True, metavar="WHEEL|DIR…")
@option("--out DIR", "Output directory of the set.", required=True, type=PATH)
@option("--rocm-version X.Y.Z", "ROCm of the wheels.  [default: proven by the wheels]")
@json_option
@click.pass_obj
def adopt(
    state: State,
    wheels: tuple[str, ...],
    out: Path,
    rocm_version: str | None,
    *,
    as_json: bool,
) -> None:
    """Make a wheel set from existing wheels.

    The wheels are copied unchanged, so that gates can check them. wheels.json records
    the set as `adopted`.
    """
    # Start-up time: it loads auditwheel.
    from ci_build.wheelset import adoption

    rocm = RocmVersion(text=rocm_version) if rocm_version else None
    reporter = state.reporter()
    with reporter.group("adopt"):
        wheel_set = adoption.adopt(wheels, out=out, rocm=rocm, progress=reporter)
    if as_json:
        print_json(
            {"digest": wheel_set.digest, "folder": str(out), "wheel_set": wheel_set}
        )
    else:
        print_line(
            f"wheel set {wheel_set.digest} in {out}: {len(wheel_set.wheels)} wheels for"
            f" {', '.join(wheel_set.targets)}"
        )
