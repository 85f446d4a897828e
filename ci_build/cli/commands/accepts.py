"""`ci_build accepts`: check the ci_build commands in workflows and scripts without running them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from pathlib import Path
from typing import Any

import click
import cloup

from core.errors import DriftError, InputError, RequestError
from core.report import print_line

_BEFORE = re.compile(r"-|run:|[$!]|\w+=.*|if|then|else|while|until|do|time|env|sudo|exec|(?:.*/)?python[\d.]*")
"""Words that may precede a command: YAML, a prompt, variables, shell keywords, an interpreter."""
_EXPRESSION = re.compile(r"\$\{\{.*?\}\}")
"""Expressions that a CI service evaluates (GitHub Actions, "Evaluate expressions")."""
_QUOTED = r"""'[^']*'|"(?:\\.|[^"\\])*"|\\."""
_TOKEN = re.compile(
    rf"""(?P<comment>\#.*)|(?P<word>(?:{_QUOTED}|[^\s'"\\();<>|&])+)|(?P<end>[();<>|&]+)|(?P<open>['"].*)"""
)
"""Tokens of a shell line; a quote that is closed on a later line (`open`) extends to the end of the line."""
_PLAIN: tuple[type[Any], ...] = (click.Choice, click.types.IntParamType, click.types.FloatParamType)
"""Option types whose validity does not depend on the machine."""
_FILLED_IN = re.compile(r"[$`{]")
_SOME = "$*"
"""Placeholder for a word that a shell may expand to any number of options and arguments."""

Command = tuple[str, list[str]]
"""Location of a command in a file, and the words of the command after `ci_build`."""


@cloup.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
def accepts(files: tuple[Path, ...]) -> None:
    """Check that this version accepts the ci_build commands in workflows and scripts, without running them.

    FILE is the output of `ci_build matrix`, or a text file with commands at the start of lines, such as a workflow, a
    shell script or a README. Unknown options, invalid values and missing arguments are reported with their lines.
    Values that a shell or CI service fills in are not checked.
    """
    from ci_build.cli import main  # Import cycle: the command line loads this module.

    commands = [command for file in files for command in _commands(file)]
    wrong = [f"{where}: {why}" for where, words in commands if (why := refusal(main, words))]
    for line in wrong:
        print_line(line)
    if wrong:
        hint = "Correct the commands (see `ci_build COMMAND --help`), or use the version that they were written for."
        raise DriftError(f"{len(wrong)} of {len(commands)} commands would be refused.", hint=hint)
    print_line(f"{len(commands)} commands, none would be refused")


def refusal(command: click.Command, words: Sequence[str], parent: click.Context | None = None) -> str:
    """Return the reason why every machine would refuse a command; empty if the command would be accepted."""
    # A separate context, so that neither files nor the environment are read.
    context = click.Context(
        command, info_name=command.name if parent else "ci_build", parent=parent, **command.context_settings
    )
    try:
        given, rest, _ = command.make_parser(context).parse_args(list(words))
        if (asks := command.get_help_option(context)) and given.get(asks.name or ""):
            return ""
        arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
        some = _SOME in [*rest, *(word for argument in arguments for word in _values(argument, given))]
        for parameter in command.params:
            _check(parameter, _values(parameter, given), context, needed=not some)
        if isinstance(command, click.Group):
            if not rest:
                return f"{context.command_path}: the name of a command is missing"
            if _FILLED_IN.search(rest[0]):
                return ""
            _, inner, rest = command.resolve_command(context, rest)
            return refusal(inner, rest, context) if inner else f"{context.command_path}: {rest[0]} is not a command"
        if rest and not some and not context.ignore_unknown_options:
            return f"{context.command_path}: does not accept {shlex.join(rest)}"
    except click.UsageError as problem:
        return f"{context.command_path}: {problem.format_message()}"
    return ""


def _values(parameter: click.Parameter, given: Mapping[str, Any]) -> list[str]:
    value = given.get(parameter.name or "")
    values = [value] if isinstance(value, str) else value if isinstance(value, (list, tuple)) else ()
    return [word for word in values if isinstance(word, str)]


def _check(parameter: click.Parameter, values: Sequence[str], context: click.Context, *, needed: bool) -> None:
    if parameter.required and needed and not values:
        raise click.MissingParameter(ctx=context, param=parameter)
    if isinstance(parameter.type, _PLAIN):
        for word in values:
            if not _FILLED_IN.search(word):
                parameter.type.convert(word, parameter, context)


def _commands(file: Path) -> Iterator[Command]:
    """Yield the ci_build commands in a file.

    Raises:
        InputError: the file cannot be read.
        RequestError: the file has no ci_build command.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(f"Cannot read {file}: {problem}.", hint="Name a readable text file.") from problem
    found = [*(_of_matrix(text) if text.lstrip().startswith("{") else _of_lines(text))]
    if not found:
        raise RequestError(f"{file} has no ci_build command.", hint="Write each command at the start of a line.")
    yield from ((f"{file}:{where}", words) for where, words in found)


def _of_matrix(text: str) -> Iterator[Command]:
    """Yield the commands of a matrix; jobs of builds have a key `command`, jobs of tests a key `argv`."""
    try:
        matrix = json.loads(text)
        jobs = [*matrix["include"], *matrix.get("merge", ())]
        commands = [
            (str(job.get("name", number)), list(map(str, job["argv"] if "argv" in job else job["command"])))
            for number, job in enumerate(jobs)
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise InputError(
            f"The file is not a matrix: {problem!r}.", hint="Create the file with `ci_build matrix`."
        ) from problem
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
        for words in _of_line(_EXPRESSION.sub("$", begun + line)):
            command = [*dropwhile(_BEFORE.fullmatch, words)]
            if len(command) > 1 and Path(command[0]).name == "ci_build":
                yield str(start), command[1:]
        begun = ""


def _of_line(line: str) -> Iterator[list[str]]:
    """Yield the words of each command on a line."""
    words: list[str] = []
    for token in _TOKEN.finditer(line):
        if token.lastgroup == "end":
            yield words
            words = []
        elif token.lastgroup == "word":
            word, begins = token["word"], all(map(_BEFORE.fullmatch, words))
            # A shell may expand an unquoted variable, `$@` or an array to any number of words.
            many = not word.startswith("-") and (
                "$@" in word or "[@]" in word or _FILLED_IN.search(re.sub(_QUOTED, "", word))
            )
            literal = (begins and _BEFORE.fullmatch(word)) or not many
            words += shlex.split(word) if literal else [_SOME]
        else:
            words += [_SOME] * (token.lastgroup == "open")
            break
    yield words
