"""The command `ci_build bucket`."""

from __future__ import annotations

import click
import cloup

from ci_build.cli.common import print_json
from promotion.storage.roles import Role, bucket_policy


@cloup.group()
def bucket() -> None:
    """Print the access policy of a bucket."""


@bucket.command("policy")
@click.argument("name", metavar="NAME[/PREFIX]")
@click.option(
    "--builder", multiple=True, metavar="ARN", help="Role that stages sets; it cannot release them or add evidence."
)
@click.option("--tester", multiple=True, metavar="ARN", help="Role that only adds evidence.")
@click.option("--promoter", multiple=True, metavar="ARN", help="Role that writes the released indexes.")
@click.option("--reader", multiple=True, metavar="ARN|*", help="Role that reads the released indexes; * is everybody.")
@click.option("--create-only", is_flag=True, help="Also deny overwriting of objects that are written once.")
def policy(
    *, name: str, builder: tuple[str, ...], tester: tuple[str, ...], promoter: tuple[str, ...], reader: tuple[str, ...],
    create_only: bool,
) -> None:  # fmt: skip
    """Print the bucket policy that separates builder, tester and promoter."""
    principals = {Role.BUILDER: builder, Role.TESTER: tester, Role.PROMOTER: promoter, Role.READER: reader}
    bare, _, prefix = name.removeprefix("s3://").partition("/")
    prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
    print_json(bucket_policy(bare, principals, prefix=prefix, create_only=create_only))
