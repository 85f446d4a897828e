"""The command `ci_build ci keys`."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.options.environment import find_signing_key
from ci_build.cli.options.shared_options import OUTPUT, PATH, option
from core.errors import RequestError


@cloup.command()
@click.argument("file", type=PATH, required=False)
@option(
    "--out FILE",
    "Create an Ed25519 key in this file, which only you can read.",
    type=OUTPUT,
)
def keys(file: Path | None, *, out: Path | None) -> None:
    """Print the public key of FILE or of a new key, for promotion/policy.toml.

    Without FILE and --out, print the public key that `gate` and `release` would sign
    evidence with.
    """
    # Start-up time: both load cryptography.
    from ci_build.release.index_authority import signer_of
    from promotion.evidence.signing import new_key

    if out is None:
        click.echo(signer_of(find_signing_key(file)).key)
        return
    if file is not None:
        raise RequestError(
            "FILE and --out exclude each other.", hint="Omit one of them."
        )
    try:
        click.echo(new_key(out).key)
    except FileExistsError as error:
        raise RequestError(
            f"{out} already exists.",
            hint="Keys are never overwritten: name another file.",
        ) from error
