"""`ci_build index serve` and `ci_build index check`."""

from __future__ import annotations

import click
import cloup

from ci_build.cli.common import State, connector, host_runner, open_bucket, print_json
from ci_build.cli.options.settings import split_list
from ci_build.cli.options.shared_options import (
    PORT,
    bucket_option,
    json_option,
    option,
)
from ci_build.cli.options.table import chosen_options
from ci_build.release.release_request import SERVE_PORT
from core.errors import RequestError
from core.model import Channel
from core.report import print_line
from promotion.index.serve import IndexServer
from promotion.published_check import check_published, raise_for_checks, read_published
from promotion.storage.directory_bucket import DirBucket


@cloup.command()
@click.argument("port", metavar="[PORT]", type=PORT, default=SERVE_PORT)
@bucket_option
@option("--host TEXT", "Address to listen on.", default="127.0.0.1")
@click.pass_obj
def serve(state: State, /, bucket: str, port: int, host: str) -> None:
    """Serve the folder of a bucket over HTTP on PORT until interrupted; 0 selects a free port."""
    reporter = state.reporter()
    opened = open_bucket(bucket, reporter)
    if not isinstance(opened, DirBucket):
        raise RequestError(
            f"Only a folder can be served: {bucket.partition('?')[0]}.",
            hint="Use the URL of the store.",
        )
    with IndexServer(opened.root, host=host, port=port) as server:
        pages = sorted(opened.root.glob(f"{Channel.RELEASED}/*/index.html"))
        for page in pages:
            print_line(f"serving {server.url}{page.parent.relative_to(opened.root)}/")
        if not pages:
            print_line(f"serving the staged sets below {server.url}")
        server.wait()


@cloup.command()
@click.argument("url", metavar="URL")
@option(
    "--python X.Y,…", "Python versions to install for.  [default: all on this machine]"
)
@chosen_options("cache_dir")
@json_option
@click.pass_obj
def check(
    state: State,
    /,
    url: str,
    python: str | None,
    cache_dir: str | None,
    *,
    as_json: bool,
) -> None:
    """Install a released set as users do, and compare it with its ledger.

    URL is a simple index, such as https://example.org/v2/multi-arch/simple/.
    """
    reporter = state.reporter()
    published = read_published(url, connector(reporter)())
    found = check_published(
        published,
        host_runner(reporter),
        reporter,
        pythons=None if python is None else split_list(python),
        cache=state.settings({"cache_dir": cache_dir}).cache_dir,
    )
    checks = tuple(found)
    if as_json:
        print_json(
            {"url": published.url, "set": published.wheel_set.digest, "checks": checks}
        )
    else:
        for item in checks:
            reason = f": {item.skipped}" if item.skipped else ""
            print_line(f"{item.outcome}  {item.name}{reason}")
            for finding in item.findings:
                print_line(
                    f"  {finding.severity} {finding.code}: {finding.message} {finding.remedy}"
                )
    raise_for_checks(published.url, checks)
