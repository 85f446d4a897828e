"""`ci_build rocm`: ROCm as it is installed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import cloup

from ci_build.cli import options
from ci_build.cli.common import State, connector, host_runner, print_json
from core.atomic import write_whole


@cloup.group()
def rocm() -> None:
    """Find, check and list ROCm as builds use it."""


@rocm.command("manifest")
@click.argument("tree", metavar="PATH", type=click.Path(path_type=Path))
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="Write it here, not to standard output.")
@click.option("--rocm-version", metavar="X.Y.Z", help="Which ROCm it is, where the tree does not say.")
@click.pass_obj
def manifest(state: State, tree: Path, out: Path | None, rocm_version: str | None) -> None:
    """List what the libraries of the ROCm in PATH export, as JSON for `--rocm-manifest` and the ABI gate."""
    from ci_build.rocm.tree import read_tree
    from core.model import RocmVersion
    from core.units import human
    from wheelkit.rocm_manifest import dump_manifest

    reporter = state.reporter()
    version = str(RocmVersion(text=rocm_version)) if rocm_version else ""
    made, notes = read_tree(tree, version, progress=reporter)
    data = dump_manifest(made)
    if out is None:
        click.echo(data, nl=False)
    else:
        write_whole(out, data)
    for note in notes:
        reporter.warning(note)
    symbols = sum(len(library.symbols) for library in made.libraries.values())
    reporter.line(
        f"ROCm {made.rocm_version}: {len(made.libraries)} libraries, {symbols} symbols, {human(len(data))} of JSON"
    )


@rocm.command("list")
@click.option("--family", metavar="NAME", help="Only this family, such as gfx94X-dcgpu.")
@click.option("--therock-listing", metavar="URL", help="The page that lists the builds.")
@click.option(
    "--limit", metavar="N", default=20, type=click.IntRange(0), show_default=True, help="At most so many; 0 shows all."
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.pass_obj
def list_builds(state: State, family: str | None, therock_listing: str | None, limit: int, *, as_json: bool) -> None:
    """List the builds that `--therock` chooses from, newest first."""
    from ci_build.rocm import listing
    from ci_build.rocm.request import check_families
    from core.http.client import without_user
    from core.report import print_table

    if family is not None:
        check_families([family])
    after = {"therock_listing": therock_listing}
    client = connector(state.reporter(after))()
    builds = listing.list_builds(client, str(state.settings(after).get("therock_listing", "build").value))
    shown = [replace(build, url=without_user(build.url)) for build in builds if family in (None, build.family)]
    shown = shown[: limit or None]
    if as_json:
        print_json(shown)
    else:
        rows = [(build.version, build.family, build.url) for build in shown]
        print_table(("version", "family", "URL"), rows)


_LOCK = click.argument("lock", metavar="[LOCK]", default="rocm.lock", type=click.Path(path_type=Path))


@rocm.command("show")
@_LOCK
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def show(lock: Path, *, as_json: bool) -> None:
    """Show which ROCm is locked."""
    from ci_build.rocm.lock import load_lock
    from core.errors import RequestError
    from core.units import human

    known = load_lock(lock)
    if known is None:
        raise RequestError(f"There is no {lock}.", hint="A build with --therock-path makes it.")
    if as_json:
        print_json(known)
        return
    families = f" for {', '.join(known.families)}" if known.families else ""
    click.echo(f"ROCm {known.version}{families}, {known.compiler}")
    click.echo(f"from {known.source}")
    if known.sha256:
        click.echo(f"sha256 {known.sha256}, {human(known.size)}")
    click.echo(f"kernels for {', '.join(known.targets) or 'no target'}")
    click.echo(f"{len(known.device_libraries)} device libraries, {len(known.libraries)} shared libraries:")
    for soname, version in known.libraries.items():
        click.echo(f"  {soname} {version}".rstrip())


@rocm.command("verify")
@_LOCK
@click.option("--cache-dir", metavar="DIR", help="The cache, if it is not the default one.")
@click.pass_obj
def verify(state: State, lock: Path, cache_dir: str | None) -> None:
    """Compare the ROCm of a lock with what was locked; it is fetched if it is not there.

    Every file is read of what was unpacked; of a folder, of which no lock knows every file, what the lock tells.
    """
    from ci_build.rocm import source

    reporter = state.reporter()
    storage = options.rocm_storage(state.settings({"cache_dir": cache_dir}), "build")
    rocm = source.verify(lock, storage, reporter, host_runner(reporter), connector(reporter))
    how = "every file of it was read" if rocm.contents is not None else "its other files are not known to a lock"
    reporter.line(f"{rocm.root} is what {lock} says; {how}")
