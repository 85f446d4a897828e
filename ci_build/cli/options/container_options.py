"""Options of containers."""

from __future__ import annotations

import shlex

from ci_build.cli.options.environment import gate_environment
from ci_build.cli.options.settings import Settings
from ci_build.release.release_request import ContainerSettings
from core.errors import RequestError


def container_args(settings: Settings) -> tuple[str, ...]:
    """Return the words of `--container-args`.

    Raises:
        RequestError: a quote is not closed, or a word is no option.
    """
    setting = settings.get("container_args")
    try:
        words = shlex.split(settings.text("container_args"))
    except ValueError as error:
        raise RequestError(
            f"{setting.origin} is invalid: {error}.", hint="Quote it as in a shell."
        ) from error
    for word in words:
        # A word that is no option would be the image of the container.
        if not word.startswith("-"):
            raise RequestError(
                f"{setting.origin} has a word that is no option: {word!r}.",
                hint="Write every option as --NAME=VALUE.",
            )
    return tuple(words)


def container_settings(settings: Settings) -> ContainerSettings:
    """Return the settings of the container in which the gate device runs.

    Raises:
        RequestError: a setting is invalid.
    """
    return ContainerSettings(
        engine=settings.text("container_engine"),
        args=container_args(settings),
        cache=settings.cache_dir,
        variables=gate_environment(),
    )
