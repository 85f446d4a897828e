"""`ci_build rocm`: ROCm as it is installed."""

from __future__ import annotations

from pathlib import Path

import click

from ci_build.cli.common import LazyGroup, State


@click.command("manifest")
@click.argument("tree", metavar="PATH", type=click.Path(path_type=Path))
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="Write it here, not to standard output.")
@click.option("--rocm-version", metavar="X.Y.Z", help="Which ROCm it is, where the tree does not say.")
@click.pass_obj
def manifest(state: State, tree: Path, out: Path | None, rocm_version: str | None) -> None:
    """List what the libraries of the ROCm in PATH export, as JSON for `--rocm-manifest` and the ABI gate."""
    from ci_build.model import RocmVersion
    from ci_build.rocm.tree import read_tree
    from ci_build.units import human
    from ci_build.wheel.manifest import dump_manifest

    reporter = state.reporter()
    version = str(RocmVersion(text=rocm_version)) if rocm_version else ""
    made, notes = read_tree(tree, version, progress=reporter)
    data = dump_manifest(made)
    if out is None:
        click.echo(data, nl=False)
    else:
        out.write_bytes(data)
    for note in notes:
        reporter.warning(note)
    symbols = sum(len(library.symbols) for library in made.libraries.values())
    reporter.line(
        f"ROCm {made.rocm_version}: {len(made.libraries)} libraries, {symbols} symbols, {human(len(data))} of JSON"
    )


rocm = LazyGroup(
    name="rocm",
    help="Work with ROCm as it is installed.",
    lazy={"manifest": "ci_build.cli.rocm:manifest"},
)
