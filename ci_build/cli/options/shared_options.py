"""The declaration of options, and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import click
import cloup
from click.core import ParameterSource

from ci_build.cli.options.environment import (
    ENV_PREFIX,
    LEDGER_KEY,
    SIGNING_KEY,
)
from core.defaults import defaults
from core.errors import RequestError
from core.os_errors import why_unwritable
from promotion.storage.bucket_url import bucket_name, is_url

Values = Mapping[str, Any]
"""Values of options by identifier, such as `jax_version`."""
Function = TypeVar("Function", bound=Callable[..., Any])
"""The function of a command."""
CHANNELS = ("local", "nightly", "release")
"""Tables of promotion/policy.toml."""

_WORDS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
"""Word of the environment or the project file -> value of a switch."""
DEFAULT_BUCKET = defaults()["release_local"]["bucket"]


class _Option(cloup.Option):
    """An option whose error names the variable that set it, and whose help has no range."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the origin of a wrong value."""
        source = ctx and ctx.get_parameter_source(self.name or "")
        if source is ParameterSource.ENVIRONMENT:
            return str(self.envvar)
        return super().get_error_hint(ctx)

    def get_help_extra(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own
        """Return the default; the error of a wrong number names the range."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


def flags_and_form(declaration: str) -> tuple[tuple[str, ...], str]:
    """Return the flags of a declaration such as `--out DIR`, and the form of the value."""
    words = declaration.split(" ")
    flags = tuple(word for word in words if word.startswith("-"))
    return flags, " ".join(words[len(flags) :])


def option(
    declaration: str,
    text: str,
    *,
    name: str = "",
    choices: Iterable[str] = (),
    variable: bool = False,
    **attributes: Any,  # noqa: ANN401 - click's own
) -> Callable[[Function], Function]:
    """Return the decorator of click that adds an option to a command.

    Args:
        declaration: flags and form of the value, such as `--out DIR`. An option without
            a form, choices and a type is a switch.
        text: help.
        name: name of the parameter; empty for that of the first flag.
        choices: values that it accepts.
        variable: whether the environment and the project file may set it.
        attributes: further arguments of click; the help shows a default that is not
            empty.
    """
    flags, form = flags_and_form(declaration)
    name = name or flags[0].lstrip("-").replace("-", "_")
    if form:
        attributes["metavar"] = form
    if choices:
        attributes["type"] = click.Choice([str(choice) for choice in choices])
    elif not form and "type" not in attributes:
        attributes |= {"is_flag": True, "type": _Switch()}
    attributes.setdefault("show_default", bool(attributes.get("default")))
    if variable:
        attributes["envvar"] = ENV_PREFIX + name.upper()
    return cloup.option(*flags, name, help=text, cls=_Option, **attributes)


def is_typed(name: str) -> bool:
    """Return whether the command line sets an option of the running command."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def refuse_typed(names: Iterable[str], why: str, hint: str = "Omit it.") -> None:
    """Refuse options on the command line that have no effect.

    The environment and the project file may set options for all commands.

    Raises:
        RequestError: the command line sets an option.
    """
    typed = ["--" + name.replace("_", "-") for name in names if is_typed(name)]
    if typed:
        verb = "has" if len(typed) == 1 else "have"
        raise RequestError(f"{', '.join(typed)} {verb} no effect {why}.", hint=hint)


def _normal_bucket(
    context: click.Context,  # noqa: ARG001
    parameter: click.Parameter,  # noqa: ARG001
    value: str | None,
) -> str | None:
    """Refuse a text that names no bucket before a folder of this name is made.

    File:// URLs become paths.
    """
    return value if value is None else bucket_name(value)


class _Number(click.ParamType[int]):
    """A whole number within limits."""

    name = "number"

    def __init__(self, least: int, most: int | None = None) -> None:
        self._least = least
        self._most = most

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the number."""
        text = str(value)
        most = self._most
        if text.isdecimal() and self._least <= int(text) <= (most or int(text)):
            return int(text)
        limits = (
            f"{self._least} or more" if most is None else f"{self._least} to {most}"
        )
        raise click.BadParameter(
            f"{text!r} is not a whole number, {limits}.", ctx, param
        )


class _Switch(click.types.BoolParamType):
    """The value of a switch, also of the environment and the project file."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> bool:
        """Return the value."""
        word = str(value).lower()
        if word not in _WORDS:
            self.fail(f"{value!r} is not one of {', '.join(_WORDS)}.", param, ctx)
        return _WORDS[word]


class _Output(click.Path):
    """A file or folder to write, whose folder must accept files."""

    def convert(
        self,
        value: str | PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - click's own
        """Return the path; nothing is written."""
        reason = why_unwritable(Path(value))
        if not Path(value).absolute().parent.is_dir():
            reason = reason or "its folder does not exist"
        if reason:
            self.fail(f"{value} cannot be written: {reason}.", param, ctx)
        return super().convert(value, param, ctx)


PATH = click.Path(path_type=Path)
OUTPUT = _Output(path_type=Path)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
COUNT = _Number(1)
ENTRY = _Number(0)
PORT = _Number(0, 65_535)
DAYS = _Number(0, 36_500)
"""Days, few enough for dates to be computed from them."""

bucket_option = option(
    "--bucket DIR|URL",
    "The bucket: a folder, or s3://NAME/PREFIX?endpoint_url=….",
    variable=True,
    callback=_normal_bucket,
    default=DEFAULT_BUCKET,
)
"""Option of commands that use a bucket and build no wheels."""

json_option = option("--json", "Print the result as JSON.", name="as_json")
"""Option of commands that print a result."""

dry_run_option = option(
    "--dry-run", "Print every write to the bucket without performing it."
)
"""Option of commands that write to a bucket and build no wheels."""

channel_option = option(
    "--channel",
    "Channel of the policy.",
    choices=CHANNELS,
    variable=True,
    default=CHANNELS[0],
)
"""Option of commands that evaluate the policy."""


allow_lower_option = option(
    "--allow-lower",
    (
        "Accept a version that pip would not select, or one for an older ROCm than pip"
        " selects now."
    ),
)
"""Option of commands that evaluate the policy."""


index_channel_option = option(
    "--channel",
    (
        "Channel whose ledger_keys must have signed the ledger.  [default: the channel"
        " of its first entry]"
    ),
    choices=CHANNELS,
    variable=True,
)
"""Option of commands that read or change the ledger of an existing index."""

ledger_key_option = option(
    "--ledger-key FILE",
    (
        f"Key that signs the ledger entry.  [default: the key in {LEDGER_KEY}, else"
        " unsigned]"
    ),
    type=PATH,
)
"""Option of commands that change a ledger.

The variable contains the key itself, as CI services provide secrets.
"""

allow_unprotected_option = option(
    "--allow-unprotected OWNER REASON",
    "Promote from a changed checkout or an unprotected ref; recorded in the ledger.",
    nargs=2,
)
"""Option of commands that promote."""


def require_explicit_channel(bucket: str) -> None:
    """Refuse the default channel for a non-folder bucket, since it stays with the index.

    Raises:
        RequestError: the running command's --channel is the default one, and the bucket
            is an URL.
    """
    source = click.get_current_context().get_parameter_source("channel")
    if source is ParameterSource.DEFAULT and is_url(bucket):
        raise RequestError(
            f"The bucket {bucket.partition('?')[0]} is shared, so its channel must be"
            " named.",
            hint=f"Give --channel: {', '.join(CHANNELS)}.",
        )


trust_config_option = option(
    "--trust-config",
    (
        "Trust configuration (JSON) of a private Sigstore.  [default: the public"
        " Sigstore]"
    ),
    type=FILE,
    variable=True,
)
"""Option of commands that sign or verify attestations."""

signing_key_option = option(
    "--signing-key FILE",
    (
        f"Key that signs evidence.  [default: the key in {SIGNING_KEY}, else your own"
        " key, created when needed]"
    ),
    type=PATH,
)
"""Option of commands that write evidence.

The variable contains the key itself, as CI services provide secrets.
"""
