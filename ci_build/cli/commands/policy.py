"""The command `ci_build policy`."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, open_bucket, print_json
from ci_build.cli.options.release import bucket_option, channel_option, trust_config_option
from promotion.check import raise_if_blocked


@cloup.group()
def policy() -> None:
    """Check whether a set may be promoted."""


@policy.command("check")
@click.argument("wheel_set", metavar="SET")
@channel_option
@bucket_option
@trust_config_option
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@click.pass_obj
def check(
    state: State, /, wheel_set: str, channel: str, bucket: str, trust_config: Path | None, *, as_json: bool
) -> None:
    """Check whether the policy lets a staged set be promoted.

    SET is INDEX/DIGEST as printed by `stage`.
    """
    # Start-up time: the gates load auditwheel.
    from ci_build.release import gating
    from ci_build.release import release as way

    reporter = state.reporter()
    staged = gating.parse_staged(wheel_set)
    word = way.check_policy(staged, open_bucket(bucket, reporter), channel, reporter, trust_config)
    if as_json:
        print_json(word)
    raise_if_blocked(staged, word)
    if not as_json:
        click.echo(f"{staged} may be promoted to channel {channel}")
