"""Every command of the program with its options, for the reference of the documentation."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

import click

from ci_build.cli.options.environment import OTHER_VARIABLES
from ci_build.cli.options.project_file import SECRETS
from ci_build.cli.options.table import option_names, option_texts
from ci_build.docs.docs_request import CommandHelp, OptionHelp


def read_commands(
    group: click.Group, sections: Mapping[str, Mapping[str, object]]
) -> tuple[CommandHelp, ...]:
    """Return every command below a group, nested ones after their group.

    Args:
        sections: title of a help section -> names of its commands, as in
            `ci_build.cli.SECTIONS`.
    """
    titles = {}
    for title, entries in sections.items():
        titles.update(dict.fromkeys(entries, title))
    # click keeps the help option of a command that it makes for the first context.
    root = click.Context(group, info_name="ci_build", **group.context_settings)
    commands: list[CommandHelp] = []
    for name in group.list_commands(root):
        commands += _below(root, name, titles[name])
    order = [*sections]
    return tuple(sorted(commands, key=lambda command: order.index(command.section)))


def project_keys() -> dict[str, str]:
    """Return the keys of `ci_build.toml` with the help of their options.

    Empty for options of single commands.
    """
    texts = option_texts()
    return {
        name: texts.get(name, "")
        for name in sorted({*option_names(), *OTHER_VARIABLES} - SECRETS)
    }


def _below(parent: click.Context, name: str, section: str) -> Iterator[CommandHelp]:
    group = parent.command
    assert isinstance(group, click.Group)
    command = group.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    full = context.command_path.removeprefix("ci_build ")
    yield CommandHelp(
        name=full,
        section=section,
        usage=" ".join(command.get_usage(context).removeprefix("Usage: ").split()),
        text=inspect.cleandoc(command.help or command.short_help or ""),
        options=tuple(_options(command, context)),
    )
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            yield from _below(context, below, section)


def _options(command: click.Command, context: click.Context) -> Iterator[OptionHelp]:
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            text = getattr(parameter, "help", None) or ""
            yield OptionHelp(
                names=parameter.make_metavar(context), text=text, group="Arguments"
            )
        elif isinstance(parameter, click.Option) and (
            record := parameter.get_help_record(context)
        ):
            group = getattr(parameter, "group", None)
            title = getattr(group, "title", "") if group is not None else ""
            yield OptionHelp(
                names=record[0],
                text=record[1],
                group=title,
                variable=str(parameter.envvar or ""),
            )
