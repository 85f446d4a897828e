"""`ci_build keys`: keys that sign evidence and ledger entries."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.options.environment import (
    LEDGER_KEY,
    find_signing_key,
    ledger_request,
)
from core.errors import RequestError


@cloup.group()
def keys() -> None:
    """Create and show keys that sign evidence and ledger entries."""


@keys.command("new")
@click.argument("file", type=click.Path(path_type=Path))
def new(file: Path) -> None:
    """Create an Ed25519 key in FILE, and print its public key.

    Only the owner of FILE can read it.
    """
    # Start-up time: it loads cryptography.
    from promotion.evidence.signing import new_key

    try:
        click.echo(new_key(file).key)
    except FileExistsError as error:
        raise RequestError(
            f"{file} already exists.",
            hint="Keys are never overwritten: name another file.",
        ) from error


@keys.command("show")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--ledger", is_flag=True, help=f"Print the key in {LEDGER_KEY} instead.")
def show(file: Path | None, *, ledger: bool) -> None:
    """Print the public key of FILE, for promotion/policy.toml.

    Without FILE, print the public key that `gate` and `release` would sign evidence
    with.
    """
    # Start-up time: it loads cryptography.
    from ci_build.release.index_authority import signer_of

    if ledger and file is not None:
        raise RequestError(
            "FILE and --ledger exclude each other.", hint="Omit one of them."
        )
    key = ledger_request(None).key if ledger else find_signing_key(file)
    if key is None:
        raise RequestError(
            f"{LEDGER_KEY} is not set.",
            hint="Set it to the text of a key, or name the FILE of a key.",
        )
    click.echo(signer_of(key).key)
