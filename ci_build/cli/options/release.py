"""Options of commands that build no wheels: gates, buckets, the policy, keys."""

from __future__ import annotations

from pathlib import Path

import click

from ci_build.cli.options.environment import ENV_PREFIX, SIGNING_KEY
from core.defaults import defaults

CHANNELS = ("local", "nightly", "release")
"""Tables of promotion/policy.toml."""

bucket_option = click.option(
    "--bucket",
    metavar="DIR|URL",
    envvar=ENV_PREFIX + "BUCKET",
    default=defaults()["release_local"]["bucket"],
    show_default=True,
    help="The bucket: a folder, or s3://NAME/PREFIX?endpoint_url=….",
)
"""For commands that use a bucket and build no wheels."""

dry_run_option = click.option("--dry-run", is_flag=True, help="List every write to the bucket, and do none.")
"""For commands that write to a bucket and build no wheels."""

channel_option = click.option(
    "--channel",
    type=click.Choice(CHANNELS),
    envvar=ENV_PREFIX + "CHANNEL",
    default=CHANNELS[0],
    show_default=True,
    help="Channel of the policy.",
)
"""For commands that evaluate the policy."""


def _has_folder(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and not value.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {value.parent}.", context, parameter)
    return value


junit_option = click.option(
    "--junit",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_has_folder,
    help="Write the evidence as JUnit XML too.",
)
"""For gates, which may run for hours before there is something to write."""

trust_config_option = click.option(
    "--trust-config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    envvar=ENV_PREFIX + "TRUST_CONFIG",
    help="Trust configuration (JSON) of a private Sigstore; the public one if none is given.",
)
"""For commands that sign or verify attestations."""

signing_key_option = click.option(
    "--signing-key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help=f"Key that signs evidence; else the text of one in {SIGNING_KEY}, else a key of your own, made at need.",
)
"""For commands that make evidence. The variable holds the key, not its file: a CI service keeps it as a secret."""
