"""The command `ci_build index init`."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, host_runner, print_json
from ci_build.cli.options.environment import config_folder, ledger_request
from ci_build.cli.options.settings import require_folder
from ci_build.cli.options.shared_options import (
    PATH,
    channel_option,
    dry_run_option,
    json_option,
    option,
    require_explicit_channel,
)
from core.errors import RequestError
from core.report import print_line
from promotion.index.operations import utc_now
from promotion.storage.bucket_url import bucket_name, is_url
from promotion.storage.roles import Role


@cloup.command()
@click.argument("bucket", metavar="DIR|URL")
@click.argument("roles", metavar="[ROLE=ARN…]", nargs=-1)
@channel_option
@option(
    "--out DIR", "Folder of the keys.  [default: ~/.config/jax-rocm-release]", type=PATH
)
@option("--create-only", "Also deny overwriting of objects that are written once.")
@dry_run_option
@json_option
@click.pass_obj
def init(
    state: State,
    /,
    bucket: str,
    roles: tuple[str, ...],
    channel: str,
    out: Path | None,
    *,
    create_only: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Prepare a bucket for its first release, and print the remaining steps.

    Create the bucket, the keys that sign evidence and the ledger, and list these keys in
    promotion/policy.toml; what exists stays. The channel `local` needs no keys.

    A bucket on S3 gets a policy that separates its roles. ROLE=ARN is a role and its
    principal: a builder stages sets, a tester only adds evidence, a promoter writes the
    released indexes, and a reader reads them; the ARN * means everybody.
    """
    # Start-up time: it loads cryptography and boto3.
    from ci_build.release.index_setup import SetupRequest, set_up

    require_explicit_channel(bucket)
    if roles and not is_url(bucket):
        raise RequestError(
            f"{bucket} is not a bucket on S3, which has roles.",
            hint="Give s3://NAME/PREFIX, or no ROLE=ARN.",
        )
    if not is_url(bucket):
        require_folder(Path(bucket_name(bucket)), "DIR")
    request = SetupRequest(
        bucket=bucket,
        channel=channel,
        principals=_principals(roles),
        create_only=create_only,
        keys=(out or config_folder()).absolute(),
        year=utc_now().year,
        ledger=ledger_request(None),
        dry_run=dry_run,
    )
    reporter = state.reporter()
    done = set_up(request, host_runner(reporter))
    if as_json:
        print_json(done)
    else:
        for line in done.lines():
            print_line(line)
    if dry_run:
        reporter.line("dry run: nothing was changed")


def _principals(words: tuple[str, ...]) -> dict[Role, tuple[str, ...]]:
    """Return role -> ARNs."""
    principals: dict[Role, tuple[str, ...]] = {}
    for word in words:
        role, _, arn = word.partition("=")
        if role not in tuple(Role) or not arn:
            raise RequestError(
                f"ROLE=ARN is invalid: {word!r}.",
                hint=f"Write ROLE=ARN with one of {', '.join(Role)}.",
            )
        principals[Role(role)] = (*principals.get(Role(role), ()), arn)
    return principals
