"""Options of commands that build no wheels: gates, buckets, the policy, keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ci_build.cli.options.environment import (
    ENV_PREFIX,
    LEDGER_KEY,
    SIGNING_KEY,
)
from core.defaults import defaults
from core.errors import RequestError
from promotion.storage.bucket_url import bucket_name, is_url

_F = TypeVar("_F", bound=Callable[..., Any])
CHANNELS = ("local", "nightly", "release")
"""Tables of promotion/policy.toml."""

DEFAULT_BUCKET = defaults()["release_local"]["bucket"]


def _normal_bucket(
    context: click.Context,  # noqa: ARG001
    parameter: click.Parameter,  # noqa: ARG001
    value: str | None,
) -> str | None:
    """Refuse a text that names no bucket before a folder of this name is made.

    File:// URLs become paths.
    """
    return value if value is None else bucket_name(value)


PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
DAYS = click.IntRange(0, 36_500)
"""Days, few enough for dates to be computed from them."""

bucket_option = click.option(
    "--bucket",
    metavar="DIR|URL",
    envvar=ENV_PREFIX + "BUCKET",
    callback=_normal_bucket,
    default=DEFAULT_BUCKET,
    show_default=True,
    help="The bucket: a folder, or s3://NAME/PREFIX?endpoint_url=….",
)
"""Option of commands that use a bucket and build no wheels."""

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON."
)
"""Option of commands that print a result."""

dry_run_option = click.option(
    "--dry-run",
    is_flag=True,
    help="Print every write to the bucket without performing it.",
)
"""Option of commands that write to a bucket and build no wheels."""

channel_option = click.option(
    "--channel",
    type=click.Choice(CHANNELS),
    envvar=ENV_PREFIX + "CHANNEL",
    default=CHANNELS[0],
    show_default=True,
    help="Channel of the policy.",
)
"""Option of commands that evaluate the policy."""


allow_lower_option = click.option(
    "--allow-lower",
    is_flag=True,
    help=(
        "Accept a version that pip would not select, or one for an older ROCm than pip"
        " selects now."
    ),
)
"""Option of commands that evaluate the policy."""


index_channel_option = click.option(
    "--channel",
    type=click.Choice(CHANNELS),
    envvar=ENV_PREFIX + "CHANNEL",
    help=(
        "Channel whose ledger_keys must have signed the ledger.  [default: the channel"
        " of its first entry]"
    ),
)
"""Option of commands that read or change the ledger of an existing index."""

ledger_key_option = click.option(
    "--ledger-key",
    metavar="FILE",
    type=PATH,
    help=(
        f"Key that signs the ledger entry.  [default: the key in {LEDGER_KEY}, else"
        " unsigned]"
    ),
)
"""Option of commands that change a ledger.

The variable contains the key itself, as CI services provide secrets.
"""

allow_unprotected_option = click.option(
    "--allow-unprotected",
    nargs=2,
    metavar="OWNER REASON",
    help=(
        "Promote from a changed checkout or an unprotected ref; recorded in the ledger."
    ),
)
"""Option of commands that promote."""


def require_explicit_channel(bucket: str) -> None:
    """Refuse the default channel for a non-folder bucket, since it stays with the index.

    Raises:
        RequestError: the running command's --channel is the default one, and the bucket
            is an URL.
    """
    source = click.get_current_context().get_parameter_source("channel")
    if source is click.core.ParameterSource.DEFAULT and is_url(bucket):
        raise RequestError(
            f"The bucket {bucket.partition('?')[0]} is shared, so its channel must be"
            " named.",
            hint=f"Give --channel: {', '.join(CHANNELS)}.",
        )


trust_config_option = click.option(
    "--trust-config",
    type=FILE,
    envvar=ENV_PREFIX + "TRUST_CONFIG",
    help=(
        "Trust configuration (JSON) of a private Sigstore.  [default: the public"
        " Sigstore]"
    ),
)
"""Option of commands that sign or verify attestations."""

signing_key_option = click.option(
    "--signing-key",
    metavar="FILE",
    type=PATH,
    help=(
        f"Key that signs evidence.  [default: the key in {SIGNING_KEY}, else your own"
        " key, created when needed]"
    ),
)
"""Option of commands that write evidence.

The variable contains the key itself, as CI services provide secrets.
"""
