"""`ci_build bucket`."""

from __future__ import annotations

import click
import cloup

from ci_build.cli.common import print_json


@cloup.group()
def bucket() -> None:
    """Set up the bucket that sets are staged in and released from."""


@bucket.command("policy")
@click.argument("name", metavar="NAME[/PREFIX]")
@click.option("--builder", multiple=True, metavar="ARN", help="Stages sets; cannot release or vouch for them.")
@click.option("--tester", multiple=True, metavar="ARN", help="Adds evidence, and nothing else.")
@click.option("--promoter", multiple=True, metavar="ARN", help="Alone writes what users see.")
@click.option("--reader", multiple=True, metavar="ARN|*", help="Reads what is released; * is everybody.")
@click.option("--create-only", is_flag=True, help="Also let the store refuse to replace what is created once.")
def policy(
    *,
    name: str,
    builder: tuple[str, ...],
    tester: tuple[str, ...],
    promoter: tuple[str, ...],
    reader: tuple[str, ...],
    create_only: bool,
) -> None:
    """Print the bucket policy that keeps builder, tester and promoter apart."""
    from promotion.storage.roles import Role, bucket_policy

    principals = {Role.BUILDER: builder, Role.TESTER: tester, Role.PROMOTER: promoter, Role.READER: reader}
    bare, _, prefix = name.removeprefix("s3://").partition("/")
    prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
    print_json(bucket_policy(bare, principals, prefix=prefix, create_only=create_only))
