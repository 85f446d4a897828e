"""`ci_build index`: the package index of a bucket."""

from __future__ import annotations

from pathlib import Path

import click

from ci_build.cli import options
from ci_build.cli.common import LazyGroup, State, open_bucket
from core.errors import RequestError


@click.command("serve")
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


@click.command("publish")
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


index = LazyGroup(
    name="index",
    help="Work with the package index of a bucket.",
    lazy={
        "serve": "ci_build.cli.commands.index:serve",
        "publish": "ci_build.cli.commands.index:publish",
        "check": "ci_build.cli.commands.index_check:check",
    },
)
