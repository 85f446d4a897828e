"""The command `ci_build index policy`."""

from __future__ import annotations

import click
import cloup

from ci_build.cli.common import print_json
from ci_build.cli.options.shared_options import option
from core.errors import RequestError
from promotion.storage.bucket_url import is_url, s3_location
from promotion.storage.roles import Role, bucket_policy


@cloup.command()
@click.argument("name", metavar="NAME[/PREFIX]")
@click.argument("roles", metavar="ROLE=ARN…", nargs=-1, required=True)
@option("--create-only", "Also deny overwriting of objects that are written once.")
def policy(
    *,
    name: str,
    roles: tuple[str, ...],
    create_only: bool,
) -> None:
    """Print the bucket policy that separates builder, tester and promoter.

    ROLE=ARN is a role and its principal. A builder stages sets, a tester only adds
    evidence, a promoter writes the released indexes, and a reader reads them; the ARN *
    means everybody.
    """
    principals: dict[Role, tuple[str, ...]] = dict.fromkeys(Role, ())
    for text in roles:
        role, _, arn = text.partition("=")
        if role not in tuple(Role) or not arn:
            raise RequestError(
                f"ROLE=ARN is invalid: {text!r}.",
                hint=f"Write ROLE=ARN with one of {', '.join(Role)}.",
            )
        principals[Role(role)] += (arn,)
    url = name if is_url(name) else f"s3://{name}"
    if "://" in name and not is_url(name):
        raise RequestError(
            f"{name!r} is not a bucket of S3, which has policies.",
            hint="Give NAME or s3://NAME/PREFIX.",
        )
    bare, prefix, _ = s3_location(url)
    print_json(bucket_policy(bare, principals, prefix=prefix, create_only=create_only))
