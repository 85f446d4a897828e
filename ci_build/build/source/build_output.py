"""The wheel that a build names in its output, checked against its command."""

from __future__ import annotations

import re

from ci_build.build.source.build_py import BuildCommand, cpython_tag
from core.errors import InputError

_WHEEL = re.compile(r"(?:Distribution path|Output wheel): (\S.*?\.whl)\s*$")


def wheel_path(line: str) -> str | None:
    """Return the path of the wheel that a line of the output names; None for other lines."""
    found = _WHEEL.search(line)
    return found[1] if found else None


def name_of_built(named: list[str], command: BuildCommand) -> str:
    """Return the file name of the one wheel that a build wrote to `command.output`.

    Args:
        named: every path that its output names.

    Raises:
        InputError: the output names no wheel, several, or another one than requested.
    """
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    paths = list(dict.fromkeys(named))
    if len(paths) != 1:
        what = f"{len(paths)} wheels ({', '.join(paths)})" if paths else "no wheel"
        raise InputError(f"The output of the build of {command.target} names {what}.", hint="Read its log.")
    folder, _, name = paths[0].rpartition("/")
    try:
        project, version, _, tags = parse_wheel_filename(name)
    except InvalidWheelFilename as error:
        raise InputError(f"The build wrote a file that is not a wheel: {name}.", hint="Read its log.") from error
    expected = {cpython_tag(command.python)} if command.python else {"py3"}
    interpreters = {tag.interpreter for tag in tags}
    wrong = [
        text
        for text, fits in (
            (f"it is in {folder}", folder == command.output),
            (f"it is of {project}", project == command.project),
            (f"its version is {version}", str(version) in command.versions),
            (f"it is for {', '.join(sorted(interpreters))}", interpreters == expected),
        )
        if not fits
    ]
    if wrong:
        raise InputError(
            f"The build wrote {name} instead of the requested wheel: {'; '.join(wrong)}.",
            hint=f"Expected is {command.project} {command.versions[0]} in {command.output}.",
        )
    return name
