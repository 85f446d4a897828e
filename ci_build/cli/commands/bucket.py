"""The command `ci_build index policy`."""

from __future__ import annotations

import click
import cloup

from ci_build.cli.common import print_json
from core.errors import RequestError
from promotion.storage.bucket_url import is_url, s3_location
from promotion.storage.roles import Role, bucket_policy


@cloup.command()
@click.argument("name", metavar="NAME[/PREFIX]")
@click.option(
    "--builder",
    multiple=True,
    metavar="ARN",
    help="Role that stages sets; it cannot release them or add evidence.",
)
@click.option(
    "--tester", multiple=True, metavar="ARN", help="Role that only adds evidence."
)
@click.option(
    "--promoter",
    multiple=True,
    metavar="ARN",
    help="Role that writes the released indexes.",
)
@click.option(
    "--reader",
    multiple=True,
    metavar="ARN|*",
    help="Role that reads the released indexes; * is everybody.",
)
@click.option(
    "--create-only",
    is_flag=True,
    help="Also deny overwriting of objects that are written once.",
)
def policy(
    *,
    name: str,
    builder: tuple[str, ...],
    tester: tuple[str, ...],
    promoter: tuple[str, ...],
    reader: tuple[str, ...],
    create_only: bool,
) -> None:
    """Print the bucket policy that separates builder, tester and promoter."""
    principals = {
        Role.BUILDER: builder,
        Role.TESTER: tester,
        Role.PROMOTER: promoter,
        Role.READER: reader,
    }
    url = name if is_url(name) else f"s3://{name}"
    if "://" in name and not is_url(name):
        raise RequestError(
            f"{name!r} is not a bucket of S3, which has policies.",
            hint="Give NAME or s3://NAME/PREFIX.",
        )
    bare, prefix, _ = s3_location(url)
    print_json(bucket_policy(bare, principals, prefix=prefix, create_only=create_only))
