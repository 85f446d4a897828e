"""Values of options with their origins: command line, environment, project file, default."""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click
from click.core import ParameterSource

from ci_build.cli.options.environment import cache_folder
from core.defaults import defaults
from core.errors import RequestError
from core.frozen import frozen
from core.os_errors import why_unwritable
from core.units import parse_url

T = TypeVar("T")
E = TypeVar("E", bound=enum.StrEnum)
HELP_HINT = "See `ci_build dist_wheels --help-all`."


@frozen
class Setting:
    """Value of an option and its origin, such as `--targets` or `defaults.toml [build]`."""

    value: Any
    origin: str


def require_folder(folder: Path, origin: str) -> None:
    """Check that a folder, which may not exist, accepts files; nothing is written.

    Raises:
        RequestError: it accepts none.
    """
    if reason := why_unwritable(folder / "file"):
        raise RequestError(
            f"{origin}={folder} cannot be written: {reason}.", hint="Name a folder."
        )


class Problems:
    """Contradictions and unreadable values of options, reported together.

    Args:
        texts: contradictions that are known already.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._texts = list(texts)
        self._errors: dict[str, RequestError] = {}

    def add(self, *texts: str) -> None:
        """Record contradictions."""
        self._texts += texts

    def read(self, reading: Callable[[], T]) -> T:
        """Return the value that a function reads.

        If it fails, record the error for `refuse` and return None.
        """
        try:
            return reading()
        except RequestError as error:
            self._errors[error.message if error.hint == HELP_HINT else str(error)] = (
                error
            )
            return cast("T", None)

    def refuse(self) -> None:
        """Raise all problems as one error.

        A single unreadable value keeps its own hint and exit code.

        Raises:
            RequestError: there are problems.
        """
        if len(self._errors) == 1 and not self._texts:
            raise self._errors.popitem()[1]
        if self._errors or self._texts:
            raise RequestError(" ".join([*self._texts, *self._errors]), hint=HELP_HINT)


def split_list(text: str | None) -> tuple[str, ...]:
    """Return the items of a comma-separated list."""
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def origins(context: click.Context, project: str) -> Mapping[str, str]:
    """Return option -> origin of its value, for options that the command line does not set.

    Args:
        project: name of the project file.
    """
    found: dict[str, str] = {}
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is ParameterSource.ENVIRONMENT:
            found[name] = str(parameter.envvar)
        elif source is ParameterSource.DEFAULT_MAP:
            found[name] = f"{name} in {project}"
    return found


class Settings:
    """Every option with its origin.

    Args:
        values: values of options; None for options without a value.
        origins: option -> origin, for options that the command line does not set.
        tables: tables of defaults.toml; the first table that contains an option counts.

    Raises:
        RequestError: a value is an invalid URL.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        origins: Mapping[str, str] | None = None,
        tables: Sequence[str] = ("build",),
    ) -> None:
        self.tables = tables
        self._given: dict[str, Setting] = {}
        self._defaults: Mapping[str, Setting] = {}
        origins = origins or {}
        for name, value in values.items():
            if value is None:
                continue
            origin = origins.get(name, "--" + name.replace("_", "-"))
            self._given[name] = Setting(value=value, origin=origin)
            # A template with fields is not a URL yet.
            if "://" in str(value) and "{" not in str(value):
                parse_url(str(value), origin)

    def with_defaults(self, defaults: Mapping[str, Setting]) -> Settings:
        """Return settings in which these values override `defaults.toml`."""
        other = copy.copy(self)
        other._defaults = {**self._defaults, **defaults}
        return other

    def get(self, name: str) -> Setting:
        """Return the setting of an option.

        As given, else from `with_defaults`, else from `defaults.toml`.
        """
        if (setting := self._given.get(name) or self._defaults.get(name)) is not None:
            return setting
        for table in self.tables:
            if name in defaults().get(table, {}):
                return Setting(
                    value=defaults()[table][name], origin=f"defaults.toml [{table}]"
                )
        return Setting(value=None, origin="not given")

    def text(self, name: str) -> str:
        """Return the value of an option as text; empty if the option has no value."""
        value = self.get(name).value
        return "" if value is None else str(value)

    def choice(self, name: str, kind: type[E]) -> E:
        """Return the value of an option with fixed values.

        The value of a table of nights was not checked by click.

        Raises:
            RequestError: the value is not one of the fixed values.
        """
        setting = self.get(name)
        try:
            return kind(setting.value)
        except ValueError as error:
            hint = f"Give one of {', '.join(kind)}."
            raise RequestError(
                f"{setting.origin} is invalid: {setting.value!r}.", hint=hint
            ) from error

    def positive(self, name: str) -> int:
        """Return the value of an option as a positive integer.

        Raises:
            RequestError: the value is not a positive integer.
        """
        text = self.text(name)
        if not text.isdecimal() or int(text) < 1:
            raise RequestError(
                f"{self.get(name).origin} is invalid: {text!r}.",
                hint="Give a positive whole number.",
            )
        return int(text)

    def given(self, name: str) -> bool:
        """Return whether anything except a default sets an option.

        A switch set to off does not count.
        """
        return name in self._given and self._given[name].value is not False

    def typed(self, name: str) -> bool:
        """Return whether the command line sets an option.

        The environment may set options for a whole machine.
        """
        return self.get(name).origin.startswith("--")

    def objections(self, names: Iterable[str], text: str) -> list[str]:
        """Return one sentence for each of these options that is set.

        The origin of its value, then the text.
        """
        return [f"{self.get(name).origin} {text}" for name in names if self.given(name)]

    def flag(self, name: str) -> bool:
        """Return the value of a switch."""
        return bool(self.get(name).value)

    @property
    def cache_dir(self) -> Path:
        """The absolute path of the folder for downloads and finished steps.

        Raises:
            RequestError: the folder accepts no files.
        """
        given = self.get("cache_dir")
        if not given.value:
            return cache_folder()[0]
        folder = Path(given.value).absolute()
        require_folder(folder, given.origin)
        return folder

    @property
    def cache_note(self) -> str:
        """A warning if the user's cache folder is replaced by another folder; else empty."""
        return "" if self.get("cache_dir").value else cache_folder()[1]
