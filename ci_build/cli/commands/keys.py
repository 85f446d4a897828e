"""`ci_build keys`: keys that sign evidence."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.options.environment import find_signing_key
from core.errors import RequestError


@cloup.group()
def keys() -> None:
    """Create and show keys that sign evidence."""


@keys.command("new")
@click.argument("file", type=click.Path(path_type=Path))
def new(file: Path) -> None:
    """Create an Ed25519 key in FILE, and print its public key.

    Only the owner of FILE can read it.
    """
    from promotion.evidence.signing import new_key  # Start-up time: it loads cryptography.

    try:
        click.echo(new_key(file).key)
    except FileExistsError as error:
        raise RequestError(f"{file} already exists.", hint="Keys are never overwritten: name another file.") from error


@keys.command("show")
@click.argument("file", type=click.Path(path_type=Path), required=False)
def show(file: Path | None) -> None:
    """Print the public key of FILE, for `keys` in promotion/policy.toml.

    Without FILE, print the public key that `gate` and `release` would sign with.
    """
    from promotion.evidence.signing import Signer, load_signer  # Start-up time: it loads cryptography.

    key = find_signing_key(file)
    click.echo((load_signer(key.file) if key.file else Signer(key.text.encode(), origin=key.origin)).key)
