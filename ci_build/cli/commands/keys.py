"""The command `ci_build ci keys`."""

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


@cloup.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--new", is_flag=True, help="Create an Ed25519 key in FILE first.")
@click.option("--ledger", is_flag=True, help=f"Print the key in {LEDGER_KEY} instead.")
def keys(file: Path | None, *, new: bool, ledger: bool) -> None:
    """Print the public key of FILE, for promotion/policy.toml.

    Without FILE, print the public key that `gate` and `release` would sign evidence
    with. Only the owner of a new FILE can read it.
    """
    # Start-up time: both load cryptography.
    from ci_build.release.index_authority import signer_of
    from promotion.evidence.signing import new_key

    if ledger and file is not None:
        raise RequestError(
            "FILE and --ledger exclude each other.", hint="Omit one of them."
        )
    if new:
        if file is None:
            raise RequestError("--new needs a FILE.", hint="Name the file of the key.")
        try:
            click.echo(new_key(file).key)
        except FileExistsError as error:
            raise RequestError(
                f"{file} already exists.",
                hint="Keys are never overwritten: name another file.",
            ) from error
        return
    key = ledger_request(None).key if ledger else find_signing_key(file)
    if key is None:
        raise RequestError(
            f"{LEDGER_KEY} is not set.",
            hint="Set it to the text of a key, or name the FILE of a key.",
        )
    click.echo(signer_of(key).key)
