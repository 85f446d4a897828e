"""`ci_build index`: serve, publish and check a package index."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, host_runner, open_bucket, print_json
from ci_build.cli.options.release import bucket_option, dry_run_option, installers_option
from ci_build.release.request import SERVE_PORT
from core.errors import RequestError
from promotion.gates.install.installer_table import NEWEST, select_installers
from promotion.index.publish import pages_changed, read_head
from promotion.index.publish import publish as write_pages
from promotion.index.serve import IndexServer
from promotion.published_check import check_published, raise_for_checks, read_published
from promotion.storage.keys import ReleasedIndex


@cloup.group()
def index() -> None:
    """Serve, publish or check the package index of a bucket."""


@index.command("serve")
@bucket_option
@click.option(
    "--port",
    default=SERVE_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 selects a free one.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
def serve(bucket: str, port: int, host: str) -> None:
    """Serve a bucket over HTTP until interrupted."""
    if not Path(bucket).is_dir():
        raise RequestError(f"{bucket} is not a directory.", hint="Make a release first, or give another --bucket.")
    with IndexServer(Path(bucket), host=host, port=port) as server:
        click.echo(f"serving {bucket} at {server.url}")
        server.wait()


@index.command("publish")
@click.argument("index")
@click.option("--everything", is_flag=True, help="Rewrite every page from the ledger.")
@bucket_option
@dry_run_option
@click.pass_obj
def publish(state: State, /, index: str, bucket: str, *, everything: bool, dry_run: bool) -> None:
    """Update the pages of INDEX to the state of its ledger.

    Missing and changed pages are restored.
    """
    reporter = state.reporter()
    opened = open_bucket(bucket, reporter, dry_run=dry_run)
    released = ReleasedIndex(index=index)
    if read_head(opened, released)[0].number == 0:
        raise RequestError(f"The bucket has no index {index}.", hint="Promote a set to this index first.")
    written = write_pages(opened, released, everything=everything or pages_changed(opened, released))
    reporter.line(f"{len(written)} pages written" if written else "nothing to do")


@index.command("check")
@click.argument("url", metavar="URL")
@click.option(
    "--set", "digest", metavar="DIGEST", help="Digest of the set, or its first digits.  [default: the newest set]"
)
@click.option(
    "--python", "python", metavar="X.Y,…", help="Python versions to install for.  [default: all on this machine]"
)
@installers_option("newest")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
@click.pass_obj
def check(
    state: State, /, url: str, digest: str | None, python: str | None, installers: str | None, *, as_json: bool
) -> None:
    """Install a released set as users do, and compare it with its ledger.

    URL is a simple index, such as https://example.org/v2/multi-arch/simple/.
    """
    reporter = state.reporter()
    selection = select_installers(installers or NEWEST)
    published = read_published(url, digest)
    pythons = None if python is None else [word.strip() for word in python.split(",") if word.strip()]
    cache = state.settings({}).cache_dir
    found = check_published(
        published, host_runner(reporter), reporter, pythons=pythons, installers=selection, cache=cache
    )
    checks = tuple(found)
    if as_json:
        print_json({"url": published.url, "set": published.wheel_set.digest, "checks": checks})
    else:
        for item in checks:
            click.echo(f"{item.outcome}  {item.name}{': ' + item.skipped if item.skipped else ''}")
            for finding in item.findings:
                click.echo(f"  {finding.severity} {finding.code}: {finding.message} {finding.remedy}")
    raise_for_checks(published.url, checks)
