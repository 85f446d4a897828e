"""The command `ci_build ci docs`."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, host_runner
from ci_build.cli.options.shared_options import OUTPUT, PATH, option
from ci_build.cli.options.table import chosen_options


@cloup.command()
@click.argument("compatibility", metavar="[TABLES]", type=PATH, required=False)
@cloup.option_group(
    "Site",
    option("--out DIR", "Folder to write the site to.", type=OUTPUT, required=True),
)
@chosen_options("cache_dir")
@click.pass_obj
def docs(
    state: State, /, out: Path, compatibility: Path | None, cache_dir: str | None
) -> None:
    """Build the documentation site, with a reference generated from this program.

    TABLES is a page of compatibility tables to include, written by `index compat`. The
    site works in a browser without a server.
    """
    # Start-up time: they load most of the program.
    from ci_build.cli import SECTIONS, main
    from ci_build.cli.command_help import project_keys, read_commands
    from ci_build.docs.reference import DocsRequest
    from ci_build.docs.site import build_site

    reporter = state.reporter({"cache_dir": cache_dir})
    cache = state.settings({"cache_dir": cache_dir}).cache_dir
    request = DocsRequest(
        commands=read_commands(main, SECTIONS),
        project_keys=project_keys(),
        compatibility=compatibility,
    )
    build_site(
        request, out, cache=cache, runner=host_runner(reporter), progress=reporter
    )
    reporter.line(f"the site is {out / 'index.html'}")
