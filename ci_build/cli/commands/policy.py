"""The command `ci_build ci policy`."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, host_runner, open_bucket, print_json
from ci_build.cli.options.environment import ledger_request
from ci_build.cli.options.shared_options import (
    allow_lower_option,
    bucket_option,
    channel_option,
    json_option,
    require_explicit_channel,
    trust_config_option,
)
from core.model import to_json
from core.report import print_line
from promotion.check import raise_if_blocked


@cloup.command()
@click.argument("wheel_set", metavar="SET")
@channel_option
@bucket_option
@trust_config_option
@allow_lower_option
@json_option
@click.pass_obj
def policy(
    state: State,
    /,
    wheel_set: str,
    channel: str,
    bucket: str,
    trust_config: Path | None,
    *,
    allow_lower: bool,
    as_json: bool,
) -> None:
    """Check whether the policy lets a staged set be promoted.

    SET is INDEX/DIGEST as printed by `set stage`, of which six digits suffice. The command
    prints the required evidence of each target, with the command that produces what is
    missing, and the exception that would excuse each missing GPU test
    and each flaky test.
    """
    # Start-up time: the gates load auditwheel.
    from ci_build.release import gating
    from ci_build.release import promotion_steps as steps
    from ci_build.release.index_authority import policy_source

    require_explicit_channel(bucket)
    reporter = state.reporter()
    opened = open_bucket(bucket, reporter)
    staged = gating.find_staged(wheel_set, opened)
    report = steps.check_policy(
        staged,
        opened,
        channel,
        reporter,
        trust_config,
        allow_lower=allow_lower,
        bucket_name=bucket,
        source=policy_source(ledger_request(None), host_runner(reporter)),
    )
    if as_json:
        print_json({**to_json(report.verdict), "missing": report.missing})
    raise_if_blocked(staged, report.verdict)
    if not as_json:
        print_line(f"{staged} may be promoted to channel {channel}")
