"""`ci_build adopt`."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, print_json


@cloup.command()
@click.argument("wheels", nargs=-1, required=True, metavar="WHEEL|DIR…")
@click.option("--out", required=True, metavar="DIR", type=click.Path(path_type=Path), help="Folder of the set.")
@click.option("--rocm-version", metavar="X.Y.Z", help="ROCm that they were built with; else what their libraries say.")
@click.option("--json", "as_json", is_flag=True, help="Print the set and its digest as JSON.")
@click.pass_obj
def adopt(state: State, wheels: tuple[str, ...], out: Path, rocm_version: str | None, *, as_json: bool) -> None:
    """Make a wheel set of anybody's wheels, byte for byte, so that gates can judge them.

    The set's request says `adopted`. What is wrong with the wheels is for the gates to say.
    """
    from ci_build.build import adopt as way
    from core.model import RocmVersion

    rocm = RocmVersion(text=rocm_version) if rocm_version else None
    made = way.adopt(wheels, out=out, rocm=rocm, progress=state.reporter())
    if as_json:
        print_json({"digest": made.digest, "folder": str(out), "wheel_set": made})
    else:
        click.echo(f"wheel set {made.digest} in {out}: {len(made.wheels)} wheels for {', '.join(made.targets)}")
