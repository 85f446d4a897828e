"""Content of the site that the command line supplies.

Commands, options and keys of the project file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class DocsRequest:
    """The content of the site that the program does not find in its own files.

    Attributes:
        commands: title of a section of the help -> Markdown page of its commands.
        project_keys: keys of `ci_build.toml` -> help text of their option.
        compatibility: page with the compatibility tables of an index, or None.
    """

    commands: Mapping[str, str]
    project_keys: Mapping[str, str]
    compatibility: Path | None = None
