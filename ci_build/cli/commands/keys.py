"""`ci_build keys`: the keys that sign evidence."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli import options
from core.errors import RequestError


@cloup.group()
def keys() -> None:
    """Make and show keys that sign evidence."""


@keys.command("new")
@click.argument("file", type=click.Path(path_type=Path))
def new(file: Path) -> None:
    """Make an Ed25519 key in FILE, for its owner alone, and print its public half."""
    from promotion.evidence.signing import new_key

    try:
        click.echo(new_key(file).key)
    except FileExistsError as error:
        raise RequestError(f"{file} is there already.", hint="Keys are never replaced: name another file.") from error


@keys.command("show")
@click.argument("file", type=click.Path(path_type=Path), required=False)
def show(file: Path | None) -> None:
    """Print the public half of the key in FILE, as `keys` in promotion/policy.toml takes it.

    Without FILE: of the key that `gate` and `release` would sign with.
    """
    from promotion.evidence.signing import Signer, load_signer

    key = options.signing_key(file)
    click.echo((load_signer(key.file) if key.file else Signer(key.text.encode(), origin=key.origin)).key)
