"""Options of commands that build no wheels: gates, buckets, the policy, keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from ci_build.cli.options.environment import (
    ENV_PREFIX,
    LEDGER_KEY,
    SIGNING_KEY,
    actor,
    find_signing_key,
    ledger_request,
    step_summary,
)
from ci_build.release.request import CORPORA, NO_URL, ReleaseOptions, Step
from core.defaults import defaults
from core.errors import RequestError
from core.units import parse_url
from promotion.storage.bucket_url import bucket_name, is_url

_F = TypeVar("_F", bound=Callable[..., Any])
CHANNELS = ("local", "nightly", "release")
"""Tables of promotion/policy.toml."""

DEFAULT_BUCKET = defaults()["release_local"]["bucket"]


def _normal_bucket(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001
    """Refuse early what is no bucket, before a folder of this name is made; file:// URLs become paths."""
    return value if value is None else bucket_name(value)


class Duration(click.FloatRange):
    """A number of days, hours, minutes or seconds, small enough for dates to be computed from it.

    Args:
        least: the smallest allowed number.
    """

    def __init__(self, least: float) -> None:
        super().__init__(least, 36_500)

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fail for NaN too, which is neither too small nor too large."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail("NaN is not a duration.", param, ctx)
        return number


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

dry_run_option = click.option("--dry-run", is_flag=True, help="Print every write to the bucket without performing it.")
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
    help="Accept a version that pip would not select, or one for an older ROCm than pip selects now.",
)
"""Option of commands that evaluate the policy."""


index_channel_option = click.option(
    "--channel",
    type=click.Choice(CHANNELS),
    envvar=ENV_PREFIX + "CHANNEL",
    help="Channel whose ledger_keys must have signed the ledger.  [default: the channel of its first entry]",
)
"""Option of commands that read or change the ledger of an existing index."""

ledger_key_option = click.option(
    "--ledger-key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help=f"Key that signs the ledger entry and the checkpoint.  [default: the key in {LEDGER_KEY}, else unsigned]",
)
"""Option of commands that change a ledger. The variable contains the key itself, as CI services provide secrets."""

allow_unprotected_option = click.option(
    "--allow-unprotected",
    nargs=2,
    metavar="OWNER REASON",
    help="Promote from a changed checkout or an unprotected ref; recorded in the ledger.",
)
"""Option of commands that promote."""


def require_explicit_channel(bucket: str) -> None:
    """Refuse the default channel for a bucket that is not a folder, since it stays with the index for good.

    Raises:
        RequestError: the running command's --channel is the default one, and the bucket is an URL.
    """
    source = click.get_current_context().get_parameter_source("channel")
    if source is click.core.ParameterSource.DEFAULT and is_url(bucket):
        raise RequestError(
            f"The bucket {bucket.partition('?')[0]} is shared, so its channel must be named.",
            hint=f"Give --channel: {', '.join(CHANNELS)}.",
        )


def installers_option(default: str) -> Callable[[_F], _F]:
    """Return the option that selects installers; `default` describes its default."""
    return click.option(
        "--installers",
        metavar="newest|all|NAME,…",
        help="The newest pip and uv; all, which adds old ones, poetry and pdm; or some, such as pip-22.3.  "
        f"[default: {default}]",
    )


def has_folder(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Refuse an output file in a folder that does not exist, before the work starts."""
    if value is not None and not value.absolute().parent.is_dir():
        raise click.BadParameter(f"folder {value.parent} does not exist.", context, parameter)
    return value


junit_option = click.option(
    "--junit",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=has_folder,
    help="JUnit XML file to write the evidence to.",
)
"""Option of gates. Its folder is checked at the start, since a gate may run for hours before it writes the file."""

trust_config_option = click.option(
    "--trust-config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    envvar=ENV_PREFIX + "TRUST_CONFIG",
    help="Trust configuration (JSON) of a private Sigstore.  [default: the public Sigstore]",
)
"""Option of commands that sign or verify attestations."""

signing_key_option = click.option(
    "--signing-key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help=f"Key that signs evidence.  [default: the key in {SIGNING_KEY}, else your own key, created when needed]",
)
"""Option of commands that write evidence. The variable contains the key itself, as CI services provide secrets."""

_STEP_OPTIONS = (
    click.option(
        "--corpus", type=click.Choice(CORPORA), help="JAX programs to compile.  [default: as the policy requires]"
    ),
    click.option(
        "--public-url",
        metavar=f"URL|{NO_URL}",
        envvar=ENV_PREFIX + "PUBLIC_URL",
        help="URL of the bucket for users: the released index is installed from it with pip and uv. "
        f"`{NO_URL}` omits this check.  [default: a folder is served for it; required for s3://]",
    ),
    click.option(
        "--wait",
        type=Duration(0),
        metavar="MINUTES",
        help="Wait for evidence that other machines produce.  [default: 0]",
    ),
    click.option(
        "--steps",
        metavar="NAME,…",
        help=f"Steps to perform, for jobs with separate identities: {', '.join(Step)}.  [default: all]",
    ),
    click.option(
        "--summary",
        metavar="FILE",
        multiple=True,
        type=click.Path(path_type=Path, dir_okay=False),
        help="Append the summary to FILE as Markdown; write it as HTML or JSON if FILE ends in .html or .json. May be "
        "repeated.  [default: $GITHUB_STEP_SUMMARY, if set]",
    ),
    click.option(
        "--jax-tests", metavar="URL@COMMIT", help="JAX's test suite for the GPU jobs.  [default: the set's commit]"
    ),
    click.option("--image", metavar="NAME@sha256:…", help="Container image of the GPU jobs.  [default: none]"),
    signing_key_option,
    ledger_key_option,
    trust_config_option,
    allow_lower_option,
    allow_unprotected_option,
)
STEP_OPTION_NAMES = (
    *("public_url", "wait", "steps", "summary", "jax_tests", "image", "trust_config", "allow_lower"),
    "allow_unprotected",
)
"""Names of the options of `step_options` that `release --local` does not use."""


_NEEDS_STEP = {
    "corpus": Step.GATES,
    "signing_key": Step.GATES,
    "wait": Step.PROMOTE,
    "ledger_key": Step.PROMOTE,
    "allow_unprotected": Step.PROMOTE,
    "public_url": Step.CHECK,
}
"""Option -> the only step that uses it; the environment may set options for all steps."""


def _is_typed(name: str) -> bool:
    """Return whether the command line sets an option of the running command."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def step_options(function: _F) -> _F:
    """Add the options of commands that take a set from its build to users."""
    for option in reversed(_STEP_OPTIONS):
        function = option(function)
    return function


def refuse_step_options(why: str) -> None:
    """Refuse options of `step_options`, and --channel, that the command line gives although they have no effect.

    Raises:
        RequestError: an option was given.
    """
    names = [name for name in ("channel", *STEP_OPTION_NAMES) if _is_typed(name)]
    if names:
        shown = ", ".join("--" + name.replace("_", "-") for name in names)
        raise RequestError(f"{shown} {'has' if len(names) == 1 else 'have'} no effect {why}.", hint="Omit it.")


def release_options(given: Mapping[str, Any], *, bucket: str, channel: str, cache: Path) -> ReleaseOptions:
    """Return the options that `step_options` added.

    Args:
        cache: the user's cache.

    Raises:
        RequestError: a step is unknown, the public URL is missing or invalid, or an option has no effect.
    """
    steps, bucket = _steps(given["steps"]), bucket_name(bucket)
    url = given["public_url"] or ""
    if Step.CHECK in steps and not url and is_url(bucket):
        raise RequestError(
            f"The public URL of {bucket.partition('?')[0]} is unknown, and the released index is checked through it.",
            hint=f"Give --public-url=URL, or --public-url={NO_URL} to omit the check.",
        )
    if url and url != NO_URL and parse_url(url, "--public-url").scheme not in ("http", "https"):
        raise RequestError(f"--public-url is not an http or https URL: {url}.", hint="Give the URL that users see.")
    for name, step in _NEEDS_STEP.items():
        if step not in steps and _is_typed(name):
            option = name.replace("_", "-")
            text = f"--{option} has no effect without the step {step}."
            raise RequestError(text, hint="Omit it, or change --steps.")
    return ReleaseOptions(
        bucket=bucket,
        channel=channel,
        corpus=given["corpus"] or "",
        key=find_signing_key(given["signing_key"]),
        actor=actor(),
        ledger=ledger_request(given["ledger_key"], channel, given["allow_unprotected"]),
        steps=steps,
        public_url=url,
        wait=given["wait"] or 0.0,
        trust_config=given["trust_config"],
        allow_lower=given["allow_lower"],
        jax_tests=given["jax_tests"] or "",
        image=given["image"] or "",
        cache=cache,
    )


def _steps(text: str | None) -> tuple[Step, ...]:
    """Return the steps of a comma-separated list in their order; all for None."""
    if text is None:
        return tuple(Step)
    words = [word.strip() for word in text.split(",") if word.strip()]
    if unknown := sorted({*words} - {*Step}) or ([] if words else ["none given"]):
        raise RequestError(f"--steps is invalid: {', '.join(unknown)}.", hint=f"Give some of {', '.join(Step)}.")
    return tuple(step for step in Step if step in words)


def summary_files(given: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the files of the summary: those of --summary, else the job's summary of the CI service, if there is one.

    Raises:
        RequestError: the folder of a file does not exist.
    """
    files: tuple[Path, ...] = given["summary"]
    for file in files:
        if not file.absolute().parent.is_dir():
            raise RequestError(f"--summary: folder {file.parent} does not exist.", hint="Create it.")
    default = step_summary()
    return files or ((default,) if default else ())
