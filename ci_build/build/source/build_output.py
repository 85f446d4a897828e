"""Which wheel a build made, by its own word: the paths that its output names, held against what was asked for."""

from __future__ import annotations

import re

from ci_build.build.source.build_py import BuildCommand, tag
from core.errors import InputError

_SAID = re.compile(r"(?:Distribution path|Output wheel): (\S.*?\.whl)\s*$")


def wheel_said(line: str) -> str | None:
    """The path of a wheel that a line of the build's output names; None for other lines."""
    found = _SAID.search(line)
    return found[1] if found else None


def name_of_built(said: list[str], command: BuildCommand) -> str:
    """The file name of the one wheel that a build made.

    Args:
        said: every path that its output named.

    Returns:
        The name, in `command.output`.

    Raises:
        InputError: it named none or several, one elsewhere, or one that was not asked for.
    """
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    paths = list(dict.fromkeys(said))
    if len(paths) != 1:
        what = f"{len(paths)} wheels ({', '.join(paths)})" if paths else "no wheel"
        raise InputError(f"The build of {command.target} says that it made {what}.", hint="Look at its log.")
    folder, _, name = paths[0].rpartition("/")
    try:
        project, version, _, tags = parse_wheel_filename(name)
    except InvalidWheelFilename as error:
        raise InputError(f"The build made {name}, which is not a wheel's name.", hint="Look at its log.") from error
    wanted = {"py3"} if not command.python else {tag(command.python)}
    wrong = [
        text
        for text, fits in (
            (f"it lies in {folder}", folder == command.output),
            (f"it is of {project}", project == command.project),
            (f"its version is {version}", str(version) in command.versions),
            (f"it is for {', '.join(sorted({t.interpreter for t in tags}))}", {t.interpreter for t in tags} == wanted),
        )
        if not fits
    ]
    if wrong:
        raise InputError(
            f"The build made {name}, which is not what was asked for: {'; '.join(wrong)}.",
            hint=f"Asked for was {command.project} {command.versions[0]} in {command.output}.",
        )
    return name
