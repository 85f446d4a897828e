"""`ci_build accepts`: whether this program takes the commands that others have written down, none of which is run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from ci_build.errors import DriftError, InputError, RequestError

_COMMAND = re.compile(
    r"""\s*(?:-\s+)?(?:run:\s*)?(?:[$]\s+)?(?:\w+=\S*\s+)*(?:exec\s+)?   # YAML, a prompt, variables
        (?:\S*python[\d.]*\s+)?(?:\S*/)?ci_build\s+(?P<words>.+)""",
    re.VERBOSE,
)
_EXPRESSION = re.compile(r"\$\{\{.*?\}\}")
"""What a CI service puts in, spaces and all (GitHub Actions, "Evaluate expressions")."""
_PARTS = re.compile(r"&&|\|\|?|;")
_ENDS = frozenset("();<>|&")
_PLAIN: tuple[type[Any], ...] = (click.Choice, click.types.IntParamType, click.types.FloatParamType)
"""Types of values that are right or wrong on every machine."""
_LITERAL = re.compile(r"[^$`{]*")

Command = tuple[str, list[str]]
"""Where it is written, and its words after `ci_build`."""


@click.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
def accepts(files: tuple[Path, ...]) -> None:
    """Say whether this program takes every ci_build command in workflows and scripts of others; none is run.

    FILE is anything with a command on a line, such as a workflow, a shell script or a README, or what
    `ci_build matrix` printed. Options that are not there any more, values that are none of the choices and what is
    missing are told, each with its line. What a shell or a CI service fills in is taken for good.
    """
    from ci_build.cli import main

    commands = [command for file in files for command in _commands(file)]
    wrong = [f"{where}: {why}" for where, words in commands if (why := refusal(main, words))]
    for line in wrong:
        click.echo(line)
    if wrong:
        hint = "Write them as `ci_build COMMAND --help` says, or use the version that they were written for."
        raise DriftError(f"{len(wrong)} of {len(commands)} commands would be refused.", hint=hint)
    click.echo(f"{len(commands)} commands, none would be refused")


def refusal(command: click.Command, words: Sequence[str], parent: click.Context | None = None) -> str:
    """Why a command would be refused whatever files and machines there are; empty when it would not."""
    # Names of the program stay away from the machine: only what stands in the words is looked at.
    context = click.Context(
        command, info_name=command.name if parent else "ci_build", parent=parent, **command.context_settings
    )
    try:
        given, rest, _ = command.make_parser(context).parse_args(list(words))
        for parameter in command.params:
            _check(parameter, given.get(parameter.name or ""), context)
        if isinstance(command, click.Group):
            if not rest:
                return f"{context.command_path}: no command is named"
            _, inner, rest = command.resolve_command(context, rest)
            return refusal(inner, rest, context) if inner else f"{context.command_path}: {rest[0]} is no command"
        if rest and not context.ignore_unknown_options:
            return f"{context.command_path}: takes no {shlex.join(rest)}"
    except click.UsageError as problem:
        return f"{context.command_path}: {problem.format_message()}"
    return ""


def _check(parameter: click.Parameter, value: Any, context: click.Context) -> None:  # noqa: ANN401 - click's own
    values = [value] if isinstance(value, str) else value if isinstance(value, (list, tuple)) else []
    if parameter.required and not values:
        raise click.MissingParameter(ctx=context, param=parameter)
    if isinstance(parameter.type, _PLAIN):
        for word in values:
            if isinstance(word, str) and _LITERAL.fullmatch(word):
                parameter.type.convert(word, parameter, context)


def _commands(file: Path) -> Iterator[Command]:
    """The commands in a file.

    Raises:
        InputError: it cannot be read.
        RequestError: there is none in it, so that nothing would be checked.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(f"{file} cannot be read: {problem}.", hint="Name a workflow, or a script.") from problem
    found = [*(_of_matrix(text) if text.lstrip().startswith("{") else _of_lines(text))]
    if not found:
        raise RequestError(f"There is no command of ci_build in {file}.", hint="Write each at the start of a line.")
    yield from ((f"{file}:{where}", words) for where, words in found)


def _of_matrix(text: str) -> Iterator[Command]:
    """Of each job in what `ci_build matrix` printed."""
    try:
        jobs = json.loads(text)["include"]
        commands = [(str(job.get("name", number)), list(map(str, job["argv"]))) for number, job in enumerate(jobs)]
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise InputError(f"This is no matrix: {problem!r}.", hint="Make it with `ci_build matrix`.") from problem
    for name, argv in commands:
        start = next((at for at, word in enumerate(argv) if Path(word).name == "ci_build"), None)
        if start is not None:
            yield name, argv[start + 1 :]


def _of_lines(text: str) -> Iterator[Command]:
    start, begun = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        start = start if begun else number
        if line.endswith("\\"):
            begun += f"{line[:-1]} "
            continue
        for part in _PARTS.split(_EXPRESSION.sub("$", begun + line)):
            if match := _COMMAND.fullmatch(part.rstrip()):
                yield str(start), _words(match["words"])
        begun = ""


def _words(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    try:
        for word in lexer:
            if set(word) <= _ENDS:
                break
            words.append(word)
    except ValueError:  # a quote that another line closes: what comes before it is checked
        pass
    return words
