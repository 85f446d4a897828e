"""`ci_build index`: the package index of a bucket."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli import options
from ci_build.cli.common import State, host_runner, open_bucket, print_json
from core.errors import RequestError


@cloup.group()
def index() -> None:
    """Work with the package index of a bucket."""


@index.command("serve")
@options.bucket_option
@click.option(
    "--port", default=options.SERVE_PORT, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
def serve(bucket: str, port: int, host: str) -> None:
    """Serve a bucket over HTTP until interrupted."""
    from promotion.index.serve import IndexServer

    if not Path(bucket).is_dir():
        raise RequestError(f"{bucket} is not a folder.", hint="Make a release first, or give its --bucket.")
    with IndexServer(Path(bucket), host=host, port=port) as server:
        click.echo(f"serving {bucket} at {server.url}")
        server.wait()


@index.command("publish")
@click.argument("index")
@click.option("--everything", is_flag=True, help="Make every page again from the ledger alone.")
@options.bucket_option
@options.dry_run_option
@click.pass_obj
def publish(state: State, /, index: str, bucket: str, *, everything: bool, dry_run: bool) -> None:
    """Bring the pages of INDEX up to its ledger; pages that are right are left alone."""
    from promotion.index.publish import publish as write
    from promotion.index.publish import read_head
    from promotion.storage.keys import ReleasedIndex

    reporter = state.reporter()
    opened = open_bucket(bucket, reporter, dry_run=dry_run)
    released = ReleasedIndex(index=index)
    if read_head(opened, released)[0].number == 0:
        raise RequestError(f"The bucket has no index {index}.", hint="Nothing was ever promoted to it.")
    written = write(opened, released, everything=everything)
    reporter.line(f"{len(written)} pages written" if written else "nothing to do")


@index.command("check")
@click.argument("url", metavar="URL")
@click.option("--set", "digest", metavar="DIGEST", help="Set to check, or its first digits; else the newest.")
@click.option("--python", "python", metavar="X.Y,…", help="Pythons to install for; else all that are here.")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
@click.pass_obj
def check(state: State, url: str, digest: str | None, python: str | None, *, as_json: bool) -> None:
    """Install a released set from URL as users do, with pip and with uv, and compare every byte with its ledger.

    URL is that of the simple index, such as https://example.org/v2/multi-arch/simple/.
    """
    from core.errors import GateError
    from promotion.index.published_check import check_published, read_published

    reporter = state.reporter()
    published = read_published(url, digest)
    pythons = None if python is None else [word.strip() for word in python.split(",") if word.strip()]
    checks = tuple(check_published(published, host_runner(reporter), reporter, pythons=pythons))
    if as_json:
        print_json({"url": published.url, "set": published.wheel_set.digest, "checks": checks})
    else:
        for item in checks:
            click.echo(f"{item.outcome}  {item.name}{': ' + item.skipped if item.skipped else ''}")
            for finding in item.findings:
                click.echo(f"  {finding.severity} {finding.code}: {finding.message} {finding.remedy}")
    failed = sum(item.failed for item in checks)
    if failed:
        raise GateError(f"{failed} of {len(checks)} checks of {published.url} failed.", hint="Each says its remedy.")
