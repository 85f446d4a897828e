"""The command `ci_build ci docs`."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, host_runner, open_bucket, print_json
from ci_build.cli.options.environment import ENV_PREFIX
from ci_build.cli.options.shared_options import (
    PATH,
    dry_run_option,
    is_typed,
    option,
    refuse_typed,
)
from ci_build.cli.options.table import chosen_options
from core.errors import RequestError
from promotion.storage.bucket_url import bucket_name


@cloup.command()
@click.argument("compatibility", metavar="[TABLES]", type=PATH, required=False)
@option("--out DIR", "Folder to write the site to.", type=PATH)
@option(
    "--bucket DIR|URL",
    (
        f"Bucket to publish the site in, below docs/.  [with --out, {ENV_PREFIX}BUCKET"
        " has no effect]"
    ),
    variable=True,
)
@chosen_options("cache_dir")
@dry_run_option
@option("--json", "Print the changes of the bucket as JSON.")
@click.pass_obj
def docs(
    state: State,
    /,
    out: Path | None,
    bucket: str | None,
    compatibility: Path | None,
    cache_dir: str | None,
    *,
    dry_run: bool,
    json: bool,
) -> None:
    """Build the documentation site, with a reference generated from this program.

    TABLES is a page of compatibility tables to include, written by `index compat`.
    Give --out to write it to a folder, which works in a browser without a server,
    --bucket to publish it beside the indexes of a bucket, or both.
    """
    if out is not None and not is_typed("bucket"):
        bucket = None
    if out is None and bucket is None:
        raise RequestError(
            "No place for the site was given.",
            hint="Give --out DIR, --bucket URL, or both.",
        )
    if bucket is None:
        hint = "Give --bucket, or omit it."
        refuse_typed(("dry_run", "json"), "without --bucket", hint)
    # Start-up time: they load most of the program.
    from ci_build.cli import SECTIONS, main
    from ci_build.cli.command_help import project_keys, read_commands
    from ci_build.docs.docs_publish import ENTRY, publish_site
    from ci_build.docs.docs_request import DocsRequest
    from ci_build.docs.site import build_site
    from promotion.storage.object_keys import DOCS

    reporter = state.reporter({"cache_dir": cache_dir})
    cache = state.settings({"cache_dir": cache_dir}).cache_dir
    store = None
    if bucket is not None:
        store = open_bucket(bucket_name(bucket), reporter, dry_run=dry_run)
    request = DocsRequest(
        commands=read_commands(main, SECTIONS),
        project_keys=project_keys(),
        compatibility=compatibility,
    )
    with ExitStack() as held:
        site = out or Path(held.enter_context(tempfile.TemporaryDirectory())) / "site"
        build_site(
            request, site, cache=cache, runner=host_runner(reporter), progress=reporter
        )
        if out is not None:
            reporter.line(f"the site is {out / ENTRY}")
        if store is None:
            return
        done = publish_site(store, site)
    if json:
        print_json(done)
    else:
        changes = (
            f"{len(done.written)} files written, {len(done.removed)} removed,"
            f" {done.same} unchanged"
        )
        reporter.line(f"{DOCS}{ENTRY}: {changes}")
