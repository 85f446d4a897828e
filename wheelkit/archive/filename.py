"""Names of wheel files (PEP 427, "File name convention")."""

from __future__ import annotations

import re
from itertools import product
from typing import NamedTuple

from core.errors import ArchiveError

# Start-up time: this pattern is as strict as packaging.utils, whose import takes half
# as long as copying a wheel.
_NAME = re.compile(
    r"(?P<project>(?:(?!__)[\w.])+)-(?P<version>[^-]+)(?:-(?P<build>\d[^-]*))?"
    r"-(?P<python>(?!\d)\w+(?:\.(?!\d)\w+)*)-(?P<abi>\w+(?:\.\w+)*)-(?P<platform>\w+(?:\.\w+)*)\.whl",
    re.ASCII,
)
_PLAIN_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*(\+[a-z0-9]+(\.[a-z0-9]+)*)?")
"""Most versions in practice.

Matching versions are valid (PEP 440) and need no slow import of `packaging`.
"""


def canonical(project: str) -> str:
    """Return a project's name in the normalized form of indexes (PEP 503)."""
    return re.sub(r"[-_.]+", "-", project).lower()


def _version_problem(version: str) -> str:
    if _PLAIN_VERSION.fullmatch(version):
        return ""
    # Start-up time: most names do not need packaging.
    from packaging.version import InvalidVersion, Version

    try:
        Version(version)
    except InvalidVersion as error:
        return str(error)
    return ""


class WheelName(NamedTuple):
    """The parts of `{project}-{version}[-{build}]-{python}-{abi}-{platform}.whl`.

    `str()` joins them.

    `name._replace(platform="manylinux_2_28_x86_64")` returns the name of a re-tagged
    wheel.

    Attributes:
        project: as spelled in the file name, such as jax_rocm7_pjrt.
        version: as spelled in the file name.
        python, abi, platform: compressed tag sets, such as py2.py3.
        build: build tag; empty if there is none.
    """

    project: str
    version: str
    python: str
    abi: str
    platform: str
    build: str = ""

    @classmethod
    def parse(cls, filename: str) -> WheelName:
        """Parse a file name.

        Raises:
            ArchiveError: the file name is not a valid wheel name.
        """
        match = _NAME.fullmatch(filename)
        if match is None:
            problem = "its parts are not project, version, optional build, python, abi and platform"
        else:
            problem = _version_problem(match["version"])
        if match is None or problem:
            raise ArchiveError(
                f"{filename!r} is not the name of a wheel: {problem}.",
                hint="Use a name such as jax_rocm7_pjrt-0.10.2-py3-none-manylinux_2_28_x86_64.whl.",
            )
        return cls(**match.groupdict(default=""))

    @property
    def canonical(self) -> str:
        """Normalized project name (PEP 503), such as jax-rocm7-pjrt."""
        return canonical(self.project)

    @property
    def tags(self) -> tuple[str, ...]:
        """Every tag of the compressed tag set (PEP 425), in the file name's order."""
        parts = [part.split(".") for part in (self.python, self.abi, self.platform)]
        return tuple("-".join(tag) for tag in product(*parts))

    def __str__(self) -> str:
        parts = (
            self.project,
            self.version,
            self.build,
            self.python,
            self.abi,
            self.platform,
        )
        return "-".join(part for part in parts if part) + ".whl"
