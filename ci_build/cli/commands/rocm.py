"""`ci_build rocm`: builds of ROCm, and locks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, connector, host_runner, print_json
from ci_build.cli.options.rocm_options import rocm_storage
from ci_build.cli.options.shared_options import PATH, json_option, option, refuse_typed
from ci_build.cli.options.table import chosen_options
from ci_build.rocm import tarball_listing as listing
from ci_build.rocm.lock import load_lock
from ci_build.rocm.rocm_request import check_families
from core.errors import RequestError
from core.report import print_line, print_table
from core.rocm_servers import naming_successor
from core.units import human


@cloup.command()
@click.argument("lock", metavar="[LOCK]", default="rocm.lock", type=PATH)
@option(
    "--list",
    "List the builds that `--therock` selects from instead, newest first.",
    name="listed",
)
@option(
    "--family NAME", "With --list: GPU family, such as gfx94X-dcgpu.  [default: all]"
)
@option(
    "--verify",
    "Verify the ROCm of the lock instead; a missing ROCm is downloaded.",
    name="verified",
)
@chosen_options("therock_listing", "cache_dir")
@json_option
@click.pass_obj
def rocm(
    state: State,
    lock: Path,
    family: str | None,
    therock_listing: str | None,
    cache_dir: str | None,
    *,
    listed: bool,
    verified: bool,
    as_json: bool,
) -> None:
    """Show or verify the ROCm of a lock, or list builds of ROCm.

    If the ROCm is an unpacked archive, every file is verified; if it is a directory,
    only the files that the lock records.
    """
    if not listed:
        refuse_typed(("family",), "without --list")
    if listed:
        _list(state, family, therock_listing, as_json=as_json)
    elif verified:
        _verify(state, lock, cache_dir)
    else:
        _show(lock, as_json=as_json)


def _list(
    state: State, family: str | None, therock_listing: str | None, *, as_json: bool
) -> None:
    # Start-up time: the client loads requests.
    from core.http.client import without_user

    if family is not None:
        check_families([family])
    after = {"therock_listing": therock_listing}
    client = connector(state.reporter(after))()
    url = state.settings(after).text("therock_listing")
    with naming_successor(url):
        builds = listing.list_builds(client, url)
    shown = [
        replace(build, url=without_user(build.url))
        for build in builds
        if family in (None, build.family)
    ]
    if as_json:
        print_json(shown)
    else:
        rows = [(build.version, build.family, build.url) for build in shown]
        print_table(("version", "family", "URL"), rows)


def _show(lock: Path, *, as_json: bool) -> None:
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


def _verify(state: State, lock: Path, cache_dir: str | None) -> None:
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
