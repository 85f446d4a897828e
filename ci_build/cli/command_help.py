"""Every command of the program with its options, for the reference of the documentation."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

import click

from ci_build.cli.options.environment import OTHER_VARIABLES
from ci_build.cli.options.project_file import SECRETS
from ci_build.cli.options.table import option_names, option_texts
from ci_build.docs.markdown import block, code, page, plain


def read_commands(
    group: click.Group, sections: Mapping[str, Mapping[str, object]]
) -> dict[str, str]:
    """Return the title of each help section -> Markdown page of its commands.

    Args:
        sections: title of a help section -> names of its commands, as in
            `ci_build.cli.SECTIONS`.
    """
    # click keeps the help option of a command that it makes for the first context.
    root = click.Context(group, info_name="ci_build", **group.context_settings)
    pages = {}
    for title, entries in sections.items():
        parts: list[str] = []
        for name in group.list_commands(root):
            if name in entries:
                parts += _command(root, name)
        pages[title] = page(f"Commands: {title}", *parts)
    return pages


def project_keys() -> dict[str, str]:
    """Return the keys of `ci_build.toml` with the help of their options.

    Empty for options of single commands.
    """
    texts = option_texts()
    return {
        name: texts.get(name, "")
        for name in sorted({*option_names(), *OTHER_VARIABLES} - SECRETS)
    }


def _command(parent: click.Context, name: str) -> Iterator[str]:
    """Yield the Markdown parts about a command, and about those below a group."""
    group = parent.command
    assert isinstance(group, click.Group)
    command = group.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    yield f"## {plain(context.command_path.removeprefix('ci_build '))}"
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield block(" ".join(usage.split()))
    texts = inspect.cleandoc(command.help or command.short_help or "")
    for text in texts.split("\n\n"):
        line = " ".join(text.removeprefix("\b").split())
        start, _, example = line.partition("Example: ")
        if line:
            yield f"Example: {code(example)}" if example and not start else plain(line)
    groups: dict[str, list[str]] = {}
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            text = getattr(parameter, "help", None) or ""
            item = _item(parameter.make_metavar(context), text, "")
            groups.setdefault("Arguments", []).append(item)
        elif record := parameter.get_help_record(context):
            title = getattr(getattr(parameter, "group", None), "title", "")
            item = _item(*record, str(parameter.envvar or ""))
            groups.setdefault(title, []).append(item)
    for title, items in groups.items():
        if title:
            yield f"**{plain(title)}**"
        yield "\n".join(items)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            yield from _command(context, below)


def _item(names: str, text: str, variable: str) -> str:
    """Return the list item of an option, which an environment variable may set."""
    about = plain(" ".join(text.split()))
    if variable:
        about += f" Environment: {code(variable)}."
    return f"- {code(names)}: {about}" if about else f"- {code(names)}"
