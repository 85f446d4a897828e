"""Command lines of the program, parsed without running them."""

from __future__ import annotations

import click

from ci_build.cli import main


def parse(words: list[str]) -> None:
    """Check that a command and its options exist, and the values of choices.

    The words follow `ci_build`.

    Missing arguments and options are no problem, since documentation may omit them.

    Raises:
        click.UsageError: the program would refuse the command.
    """
    command: click.Command | None = main
    parent = None
    while command is not None:
        context = click.Context(
            command, parent=parent, info_name=command.name, **command.context_settings
        )
        given, words, _ = command.make_parser(context).parse_args(words)
        for parameter in command.params:
            value = given.get(parameter.name or "")
            if isinstance(parameter.type, click.Choice) and isinstance(value, str):
                parameter.type.convert(value, parameter, context)
        if not isinstance(command, click.Group) or not words:
            return
        _, command, words = command.resolve_command(context, words)
        parent = context
