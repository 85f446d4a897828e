"""Parts of the command line that commands share.

Lazy groups, the reporter, processes, buckets, JSON output.

A command's module is imported when the command is used. An import that would slow
`--help` down noticeably stands in the function that needs it.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import cloup

from ci_build.cli.options.environment import child_environment, new_reporter, proxy_of
from ci_build.cli.options.project_file import NO_PROJECT_FILE, ProjectFile
from ci_build.cli.options.settings import Settings, origins
from core.errors import RequestError
from core.frozen import frozen
from core.model import to_json
from core.process import HostRunner
from core.report import Reporter
from core.terminal import fold, width_of

if TYPE_CHECKING:  # At run time, they would be slow to import.
    from core.http.client import Client, Connect
    from promotion.storage.bucket import Bucket


_PLAN_WIDTH = 120
"""Columns of the commands of a dry run without a terminal, or on a wide one."""
_SHELL_WORD = re.compile(r"""(?:[^\s'"\\]|'[^']*'|"[^"]*"|\\.)+""")
_RESUMED = ("dist_wheels", "gate", "kernels", "nightly", "release")
"""Commands that store each finished step."""
Entries = Mapping[str, tuple[str, str, str]]
"""Name of a command -> module below `commands`, summary, words of an example.

The module is empty for a group of `LazyGroup.groups`.
"""
_EXAMPLE = "\b\nExample: "


class LongCommand(cloup.Command):
    """A command with many options: --help shows the usual ones, and --help-all all.

    Args:
        usual: names of the parameters that --help shows.
        words: further arguments of cloup.Command.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - click's own arguments
        usual: Collection[str],
        **words: Any,  # noqa: ANN401 - click's own arguments
    ) -> None:
        option = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            help="Show all options.",
            callback=self._show_all,
        )
        words["params"] = [*words["params"], option]
        super().__init__(*args, **words)
        self._further = [
            parameter
            for parameter in self.params
            if isinstance(parameter, click.Option)
            and not parameter.hidden
            and parameter.name not in (*usual, "help_all")
        ]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help with the usual options."""
        self._hide_further(hidden=True)
        super().format_help(ctx, formatter)
        self._hide_further(hidden=False)

    def _hide_further(self, *, hidden: bool) -> None:
        for option in self._further:
            option.hidden = hidden
        for group in self.option_groups:
            group.hidden = all(option.hidden for option in group)

    def _show_all(
        self, ctx: click.Context, _option: click.Parameter, asked: bool
    ) -> None:
        if asked:
            formatter = ctx.make_formatter()
            super().format_help(ctx, formatter)
            click.echo(formatter.getvalue().rstrip("\n"))
            ctx.exit()


class LazyGroup(cloup.Group):
    """A group that imports each command when it is used; the help of the group imports no command.

    Args:
        sections: title of a help section -> its commands.
        groups: name of a group among these commands -> its commands.
        more: further arguments of cloup.Group.
    """

    def __init__(
        self,
        *,
        sections: Mapping[str, Entries],
        groups: Mapping[str, Entries] | None = None,
        **more: Any,  # noqa: ANN401 - click's own arguments
    ) -> None:
        super().__init__(**more)
        self._groups = groups or {}
        self._modules: dict[str, str] = {}
        self._examples: dict[str, str] = {}
        for title, entries in sections.items():
            stubs = []
            for name, (module, text, example) in entries.items():
                self._modules[name] = module
                self._examples[name] = f"{name} {example}".rstrip()
                stubs.append(click.Command(name, help=text, short_help=text))
            self.add_section(cloup.Section(title, stubs))

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return the help option, which the help of a group omits."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.hidden = True
        return option

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as in click
        """Run a command; after an interrupt, Abort has a sentence for the user."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            resumed = ctx.invoked_subcommand in _RESUMED
            text = "The same command reuses each finished step." if resumed else ""
            raise click.Abort(text) from error

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands, in the order of the help."""
        return [*self._modules]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command with this name; None if there is none."""
        stub = super().get_command(ctx, cmd_name)
        if stub is None or cmd_name not in self._modules:
            return stub
        if cmd_name in self._groups:
            sections = {"Commands": self._groups[cmd_name]}
            return LazyGroup(name=cmd_name, help=stub.help, sections=sections)
        module = importlib.import_module(
            f"ci_build.cli.commands.{self._modules[cmd_name]}"
        )
        # The function of `kernels list` is `list_`, since Python has a `list`.
        command = getattr(module, cmd_name, None) or getattr(module, f"{cmd_name}_")
        assert isinstance(command, click.Command)
        text = inspect.cleandoc(command.help or "")
        if not text.startswith(_EXAMPLE):
            path = "ci_build" if self._groups else f"ci_build {self.name}"
            command.help = f"{_EXAMPLE}{path} {self._examples[cmd_name]}\n\n{text}"
        if isinstance(ctx.obj, State):
            ctx.default_map = {cmd_name: project_defaults(command, ctx.obj.project)}
        return command


def project_defaults(command: click.Command, project: ProjectFile) -> dict[str, Any]:
    """Return the default map of a command: values of options that the project file may set.

    These are the options that have an environment variable.
    """
    if isinstance(command, click.Group):
        return {}  # it gives its commands their own defaults
    return {
        parameter.name: project.values[parameter.name]
        for parameter in command.params
        if parameter.envvar and parameter.name in project.values
    }


@frozen
class State:
    """Options of the program itself, and the project file."""

    verbose: bool = False
    quiet: bool = False
    project: ProjectFile = NO_PROJECT_FILE

    def settings(
        self, values: Mapping[str, Any], tables: Sequence[str] = ("build",)
    ) -> Settings:
        """Return values of the running command with origins, and with defaults of defaults.toml."""
        path = self.project.path
        found = origins(click.get_current_context(), path.name if path else "")
        return Settings(values, found, tables)

    def reporter(self, values: Mapping[str, Any] | None = None) -> Reporter:
        """Return a reporter of progress on standard error."""
        settings = self.settings(values or {})
        verbose = self.verbose or settings.flag("verbose")
        quiet = self.quiet or settings.flag("quiet")
        if verbose and quiet:
            raise RequestError(
                "--verbose and --quiet exclude each other.", hint="Omit one of them."
            )
        reporter = new_reporter(verbose=verbose, quiet=quiet)
        reporter.collect_warnings()
        click.get_current_context().call_on_close(reporter.close)
        if values and "cache_dir" in values and (note := settings.cache_note):
            reporter.warning(
                f"{note} Choose another place with --cache-dir or XDG_CACHE_HOME."
            )
        return reporter


def host_runner(reporter: Reporter) -> HostRunner:
    """Return a runner of processes on this machine."""
    return HostRunner(child_environment(), echo=reporter.detail, sink=reporter.detail)


def connector(reporter: Reporter) -> Connect:
    """Return a function that opens HTTP clients with the proxies of the environment.

    Retries are reported.
    """

    def connect() -> Client:
        from core.http.client import Client  # Start-up time: it loads requests.

        return Client(find_proxy=proxy_of, notice=reporter.notice)

    return connect


def echo_error(line: str) -> None:
    """Print a line of a child process's standard error on standard error."""
    click.echo(line, err=True)


def print_json(value: object) -> None:
    """Print a dataclass or JSON values on standard output."""
    click.echo(json.dumps(to_json(value), indent=2, ensure_ascii=False))


def show_plan(lines: Sequence[str], *, as_json: bool) -> None:
    """Print the lines of a dry run on standard output.

    Long commands are wrapped unless the output is JSON.
    """
    if as_json:
        click.echo(json.dumps({"plan": lines}, indent=2))
        return
    width = width_of(sys.stdout)
    click.echo("\n".join(wrap_command(line, width) for line in lines))


def wrap_command(line: str, terminal: int | None = None) -> str:
    """Return a line of a dry run.

    A long command, which follows `$ `, is continued on further lines.

    A shell reads the result as the same command. A value stays on the line of its
    option.

    Args:
        terminal: width of the terminal; None if there is none.
    """
    indent, mark, command = line.partition("$ ")
    width = min(_PLAN_WIDTH, terminal or _PLAN_WIDTH)
    if not mark or indent.strip():
        return fold(line, terminal)
    if len(line) <= width:
        return line
    units = list[str]()
    option = False
    for word in _SHELL_WORD.findall(command):
        if option and not word.startswith("-"):
            units[-1] += f" {word}"
        else:
            units.append(word)
        option = word.startswith("-") and "=" not in word
    rows = ["$"]
    for unit in units:
        if len(indent) + len(rows[-1]) + len(unit) < width - 2:
            rows[-1] += f" {unit}"
        else:
            rows.append(f"    {unit}")
    return " \\\n".join(indent + row for row in rows)


def open_bucket(
    text: str, reporter: Reporter, *, dry_run: bool = False, existing: bool = True
) -> Bucket:
    """Open a bucket; a dry run prints writes instead of performing them.

    Raises:
        RequestError: the bucket does not exist, although `existing` requires it.
    """
    # Start-up time: few commands open a bucket.
    from promotion.storage.bucket_url import open_bucket as opened
    from promotion.storage.dry_run import DryRunBucket

    bucket = opened(text)
    if existing and not bucket.exists():
        raise RequestError(
            f"The bucket {text} does not exist.",
            hint=f"Create it with `ci_build index init {text}`, or give another --bucket.",
        )
    if not dry_run:
        return bucket
    click.get_current_context().call_on_close(
        lambda: reporter.line("dry run: nothing was changed")
    )
    return DryRunBucket(bucket, lambda line: reporter.line(f"  would {line}"))
