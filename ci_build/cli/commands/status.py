"""The command `ci_build status`."""

from __future__ import annotations

import time
from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, open_bucket, print_json
from ci_build.cli.options.shared_options import (
    DEFAULT_BUCKET,
    bucket_option,
    channel_option,
    json_option,
    trust_config_option,
)
from ci_build.cli.options.table import chosen_options
from core.lock_holders import lock_holders
from core.process import render, without_credentials
from core.report import print_line
from promotion.index.pages import tiers_text


@cloup.command()
@chosen_options("cache_dir")
@channel_option
@bucket_option
@trust_config_option
@json_option
@click.pass_obj
def status(
    state: State,
    /,
    cache_dir: str | None,
    channel: str,
    bucket: str,
    trust_config: Path | None,
    *,
    as_json: bool,
) -> None:
    """Show running work, and staged sets with the checks that block them."""
    # Start-up time: the policy loads auditwheel.
    from ci_build.release import pipeline_status as states

    reporter = state.reporter()
    cache = state.settings({"cache_dir": cache_dir}).cache_dir
    running = lock_holders(cache)
    staged: list[states.StagedState] = []
    if bucket != DEFAULT_BUCKET or Path(bucket).is_dir():
        opened = open_bucket(bucket, reporter)
        staged += states.staged_states(opened, channel, trust_config)
    if as_json:
        print_json({"running": running, "staged": staged})
        return
    for work in running:
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(work.started))
        print_line(
            f"running since {since}, process {work.pid}:"
            f" {without_credentials(render(work.argv))}"
        )
        for path in work.paths:
            print_line(f"  uses {path}")
    if not running:
        print_line(f"no process uses {cache}")
    for item in staged:
        tiers = tiers_text(item.tiers)
        print_line(
            f"{item.index}/{item.digest[:12]} {item.state},"
            f" {item.used:%Y-%m-%d %H:%M}{tiers and f': {tiers}'}"
        )
        for reason in item.blocked_by:
            print_line(f"  {reason}")
    if not staged:
        print_line(f"no staged sets in {bucket.partition('?')[0]}")
