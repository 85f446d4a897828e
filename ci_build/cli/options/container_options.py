"""Options of containers."""

from __future__ import annotations

import shlex

from ci_build.cli.options.settings import Settings
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
