"""The command `ci_build shell`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import cloup

from ci_build.cli.common import State, echo_error, host_runner
from ci_build.cli.options.environment import child_environment
from core.errors import MachineError
from core.process import exec_replace, render


def _refuse_options(context: click.Context, _: click.Parameter, value: Any) -> Any:  # noqa: ANN401 - click's value
    """Refuse an unknown option in place of SET or at the start of COMMAND."""
    first = str(value[0]) if isinstance(value, tuple) and value else str(value)
    if value and first.startswith("-"):
        raise click.NoSuchOption(first, ctx=context)
    return value


@cloup.command(context_settings={"ignore_unknown_options": True})
@click.argument("folder", metavar="SET", type=click.Path(path_type=Path), callback=_refuse_options)
@click.option("--print", "show", is_flag=True, help="Print the command instead of running it.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, callback=_refuse_options)
@click.pass_obj
def shell(state: State, folder: Path, command: tuple[str, ...], *, show: bool) -> None:
    """Open a shell in the environment of the last source build of SET, even if the build failed.

    The newest command in the shell's history repeats the build. With COMMAND, run COMMAND instead of a shell.
    """
    from ci_build.build import build_shell  # Start-up time: it loads isal.

    reporter = state.reporter()
    environment = build_shell.load_environment(folder)
    if show:
        click.echo(render(build_shell.shell_command(environment, command, terminal=True)[0]))
        return
    build_shell.prepare(environment)
    terminal = reporter.terminal and not command
    argv, env, cwd = build_shell.shell_command(environment, command, terminal=terminal)
    if command:
        host_runner(reporter).run(argv, env=env, cwd=cwd, on_line=click.echo, on_error_line=echo_error)
        return
    if not terminal:
        raise MachineError("A shell needs a terminal.", hint="Give a command to run instead of a shell.")
    reporter.line(f"last build here: {environment.what}, {environment.state}; its command is in the history (arrow up)")
    exec_replace(argv, {**child_environment(), **env})
