"""`ci_build release`, and its steps `stage` and `promote`."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.build import dist_wheels
from ci_build.cli.common import State, connector, host_runner, open_bucket, print_json, show_plan
from ci_build.cli.options.environment import actor, find_signing_key
from ci_build.cli.options.release import (
    allow_lower_option,
    bucket_option,
    channel_option,
    dry_run_option,
    require_explicit_channel,
    signing_key_option,
    trust_config_option,
)
from ci_build.cli.options.request import wheel_set_request
from ci_build.cli.options.table import build_options
from ci_build.release.request import CORPORA, LocalRelease
from core.defaults import defaults
from core.errors import RequestError
from promotion import stage as promotion_stage
from promotion.storage import bucket_url

_TABLES = ("release_local", "build")


@cloup.command()
@click.option("--local", is_flag=True, help="Release on the channel `local`; required.")
@click.option(
    "--bucket",
    metavar="DIR|URL",
    help=f"The bucket: a folder, or s3://NAME/PREFIX.  [default: {defaults()['release_local']['bucket']}]",
)
@click.option("--corpus", type=click.Choice(CORPORA), help=f"JAX programs to compile.  [default: {CORPORA[0]}]")
@signing_key_option
@build_options(*_TABLES)
@click.pass_obj
def release(
    state: State, /, *, local: bool, bucket: str | None, corpus: str | None, signing_key: Path | None, **after: object
) -> None:
    """Build, stage, gate and promote a set to `v2`, and print the command that installs it."""
    from ci_build.release import release as way  # Start-up time: the gates load auditwheel.

    if not local:
        raise RequestError("`release` requires --local.", hint="Run `ci_build release --local`.")
    settings, reporter = state.settings({**after, "bucket": bucket, "corpus": corpus}, _TABLES), state.reporter(after)
    runner, connect = host_runner(reporter), connector(reporter)
    as_json = settings.flag("json")
    request = LocalRelease(
        wheel_set=wheel_set_request(settings, reporter, runner, connect),
        bucket=settings.text("bucket"),
        corpus=settings.text("corpus"),
        key=find_signing_key(signing_key),
        actor=actor(),
    )
    opened = bucket_url.open_bucket(request.bucket)
    prepared = dist_wheels.prepare(request.wheel_set, reporter, runner, connect)
    if request.wheel_set.dry_run:
        lines = [*dist_wheels.dry_run_lines(prepared, request.wheel_set), *way.plan_lines(request)]
        show_plan(lines, as_json=as_json)
        return
    receipt = way.release_local(request, opened, prepared, reporter, runner, show=not as_json)
    if as_json:
        print_json(receipt)


@cloup.command()
@click.argument("wheel_set", metavar="SET", type=click.Path(path_type=Path))
@bucket_option
@dry_run_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def stage(state: State, /, wheel_set: Path, bucket: str, *, dry_run: bool, as_json: bool) -> None:
    """Upload the set in directory SET to `v2-staging`, under its digest; nothing is overwritten."""
    reporter = state.reporter()
    opened = open_bucket(bucket, reporter, dry_run=dry_run, existing=False)
    staged = promotion_stage.stage(opened, wheel_set, progress=reporter)
    if as_json:
        print_json({"index": staged.index, "digest": staged.digest, "set": str(staged), "installable": staged.simple})
        return
    click.echo(str(staged))


@cloup.command()
@click.argument("staged", metavar="SET")
@channel_option
@bucket_option
@dry_run_option
@trust_config_option
@allow_lower_option
@click.option("--json", "as_json", is_flag=True, help="Print the receipt as JSON.")
@click.pass_obj
def promote(
    state: State, /, staged: str, channel: str, bucket: str, trust_config: Path | None,
    *, allow_lower: bool, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Promote a set to `v2` if the policy accepts its evidence.

    SET is INDEX/DIGEST as printed by `stage`, or the set's directory.
    """
    # Start-up time: the gates load auditwheel.
    from ci_build.release import gating
    from ci_build.release import release as way

    require_explicit_channel(bucket)
    reporter = state.reporter()
    opened = open_bucket(bucket, reporter, dry_run=dry_run, existing=not Path(staged).is_dir())
    found = gating.find_set(staged, opened, reporter)
    done = way.promote(found, opened, channel, reporter, actor(), trust_config, allow_lower=allow_lower)
    if as_json:
        print_json({**way.receipt_of(done), "new": done.new, "warnings": done.warnings})
