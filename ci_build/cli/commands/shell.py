"""`ci_build shell`."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli import options
from ci_build.cli.common import State, echo_error, host_runner


@cloup.command(context_settings={"ignore_unknown_options": True})
@click.argument("folder", metavar="SET", type=click.Path(path_type=Path))
@click.option("--print", "show", is_flag=True, help="Print the command that would be run, and run nothing.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def shell(state: State, folder: Path, command: tuple[str, ...], *, show: bool) -> None:
    """Open a shell where the set in that folder was, or failed to be, compiled last.

    The command of that build is the newest of the shell's history. With a COMMAND, run that there instead.
    """
    from ci_build.build import build_shell
    from core.process import become, render

    reporter = state.reporter()
    environment = build_shell.load_environment(folder)
    if show:
        click.echo(render(build_shell.shell_argv(environment, command, terminal=True)))
        return
    build_shell.prepare(environment)
    terminal = options.Surroundings.detect().terminal and not command
    argv = build_shell.shell_argv(environment, command, terminal=terminal)
    if command:
        env, cwd = build_shell.variables_of(environment), build_shell.working_directory(environment)
        host_runner(reporter).run(argv, env=env, cwd=cwd, on_line=click.echo, on_error_line=echo_error)
        return
    build_shell.refuse_without_terminal(terminal=terminal)
    reporter.line(
        f"the last build there, of {environment.what}, {environment.state}; its command is in the history (arrow up)"
    )
    become(argv, {**options.environment(), **build_shell.variables_of(environment)})
