"""Content of the site that the command line supplies.

Commands, options and keys of the project file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionHelp:
    """An option or an argument of a command.

    Attributes:
        names: as the help prints them, such as `-o, --out DIR`; the metavar of an
            argument.
        text: help text.
        group: title of its group in the help; empty for ungrouped options and
            arguments.
        variable: environment variable that sets it; empty if there is none.
    """

    names: str
    text: str
    group: str = ""
    variable: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandHelp:
    """A command or a group of commands.

    Attributes:
        name: full name without the program, such as `index serve`.
        section: title of its section in the help of the program.
        usage: usage line.
        text: help text; paragraphs are separated by empty lines.
    """

    name: str
    section: str
    usage: str
    text: str
    options: Sequence[OptionHelp] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DocsRequest:
    """The content of the site that the program does not find in its own files.

    Attributes:
        commands: every command, in the order of the help.
        project_keys: keys of `ci_build.toml` -> help text of their option.
        compatibility: page with the compatibility tables of an index, or None.
    """

    commands: Sequence[CommandHelp]
    project_keys: Mapping[str, str] = field(default_factory=dict)
    compatibility: Path | None = None
