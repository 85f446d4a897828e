"""`ci_build rocm`: builds of ROCm, locks and manifests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, connector, host_runner, print_json
from ci_build.cli.options.rocm_options import rocm_storage
from ci_build.rocm import tarball_listing as listing
from ci_build.rocm.lock import load_lock
from ci_build.rocm.rocm_request import check_families
from ci_build.rocm.tree import read_tree
from core.atomic import write_whole
from core.defaults import defaults
from core.errors import RequestError
from core.model import RocmVersion
from core.report import print_line, print_table
from core.units import human
from wheelkit.rocm_manifest import dump_manifest


@cloup.group()
def rocm() -> None:
    """List, show, verify and describe the ROCm of a build."""


@rocm.command("manifest")
@click.argument("tree", metavar="PATH", type=click.Path(path_type=Path))
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File to write.  [default: standard output]",
)
@click.option(
    "--rocm-version",
    metavar="X.Y.Z",
    help="Version of the ROCm, if the tree does not record it.",
)
@click.pass_obj
def write_manifest(
    state: State, tree: Path, out: Path | None, rocm_version: str | None
) -> None:
    """Write the symbols that the ROCm in PATH exports.

    `--rocm-manifest` and the ABI gate read the written JSON.
    """
    reporter = state.reporter()
    version = str(RocmVersion(text=rocm_version)) if rocm_version else ""
    manifest, notes = read_tree(tree, version, progress=reporter)
    data = dump_manifest(manifest)
    if out is None:
        click.echo(data, nl=False)
    else:
        write_whole(out, data)
    for note in notes:
        reporter.warning(note)
    symbols = sum(len(library.symbols) for library in manifest.libraries.values())
    count = f"{len(manifest.libraries)} libraries, {symbols} symbols"
    reporter.line(f"ROCm {manifest.rocm_version}: {count}, {human(len(data))} of JSON")


@rocm.command("list")
@click.option(
    "--family", metavar="NAME", help="GPU family, such as gfx94X-dcgpu.  [default: all]"
)
@click.option(
    "--therock-listing",
    metavar="URL",
    help=f"Page that lists the builds.  [default: {defaults()['build']['therock_listing']}]",
)
@click.option(
    "--limit",
    metavar="N",
    default=20,
    type=click.IntRange(0),
    show_default=True,
    help="Number of builds to list; 0 lists all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def list_builds(
    state: State,
    family: str | None,
    therock_listing: str | None,
    limit: int,
    *,
    as_json: bool,
) -> None:
    """List the builds that `--therock` selects from, newest first."""
    # Start-up time: the client loads requests.
    from core.http.client import without_user

    if family is not None:
        check_families([family])
    after = {"therock_listing": therock_listing}
    client = connector(state.reporter(after))()
    builds = listing.list_builds(client, state.settings(after).text("therock_listing"))
    shown = [
        replace(build, url=without_user(build.url))
        for build in builds
        if family in (None, build.family)
    ]
    shown = shown[: limit or None]
    if as_json:
        print_json(shown)
    else:
        rows = [(build.version, build.family, build.url) for build in shown]
        print_table(("version", "family", "URL"), rows)


_LOCK = click.argument(
    "lock", metavar="[LOCK]", default="rocm.lock", type=click.Path(path_type=Path)
)


@rocm.command("show")
@_LOCK
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def show(lock: Path, *, as_json: bool) -> None:
    """Show the ROCm of a lock."""
    known = load_lock(lock)
    if known is None:
        raise RequestError(
            f"{lock} does not exist.",
            hint="Create it with `ci_build dist_wheels --therock-path …`.",
        )
    if as_json:
        print_json(known)
        return
    families = f" for {', '.join(known.families)}" if known.families else ""
    print_line(f"ROCm {known.version}{families}, {known.compiler}")
    print_line(f"from {known.source}")
    if known.sha256:
        size = f", {human(known.size)}" if known.size else ""
        print_line(f"sha256 {known.sha256}{size}")
    print_line(f"kernels for {', '.join(known.targets) or 'no target'}")
    print_line(
        f"{len(known.device_libraries)} device libraries, {len(known.libraries)} shared libraries:"
    )
    for soname, version in known.libraries.items():
        print_line(f"  {soname} {version}".rstrip())


@rocm.command("verify")
@_LOCK
@click.option(
    "--cache-dir", metavar="DIR", help="Cache directory.  [default: user's cache]"
)
@click.pass_obj
def verify(state: State, lock: Path, cache_dir: str | None) -> None:
    """Verify the ROCm of a lock; a missing ROCm is downloaded.

    If the ROCm is an unpacked archive, every file is read; if it is a directory, only
    the files that the lock records.
    """
    from ci_build.rocm import source  # Start-up time: it loads requests.

    reporter = state.reporter()
    storage = rocm_storage(state.settings({"cache_dir": cache_dir}))
    rocm = source.verify(
        lock, storage, reporter, host_runner(reporter), connector(reporter)
    )
    scope = (
        "every file was read"
        if rocm.contents is not None
        else "files that the lock does not record were not read"
    )
    reporter.line(f"{rocm.root} matches {lock}; {scope}")
