"""What commands share: the state of the whole command line, the reporter, the door to processes, JSON output.

Modules of commands import work inside their functions, never at their head, so that `--help` stays quick.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ci_build.cli import options
from core.errors import RequestError

if TYPE_CHECKING:
    from core.process import HostRunner
    from core.report import Reporter
    from promotion.storage.bucket import Bucket


class LazyGroup(click.Group):
    """A group that imports a command when it is used.

    Args:
        lazy: name of a command -> where it is, as "module:attribute".
        more: as click.Group takes them.
    """

    def __init__(self, *, lazy: Mapping[str, str], **more: Any) -> None:  # noqa: ANN401 - click's own arguments
        super().__init__(**more)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the table."""
        return [*self.lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, which knows no lazy names to propose."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as problem:
            names = self.list_commands(ctx)
            raise click.exceptions.NoSuchCommand(problem.command_name, possibilities=names, ctx=ctx) from None


class State:
    """What the group hands to its commands: options given before the subcommand."""

    def __init__(self, before: Mapping[str, Any]) -> None:
        self.before = before

    def settings(self, after: Mapping[str, Any]) -> options.Settings:
        """All options, with those given after the subcommand."""
        return options.Settings(after, self.before)

    def reporter(self, after: Mapping[str, Any] | None = None) -> Reporter:
        """What tells a person on standard error how it goes."""
        from core.report import Reporter

        place = options.Surroundings.detect()
        settings = self.settings(after or {})
        reporter = Reporter(terminal=place.terminal, groups=place.groups, verbose=settings.flag("verbose"))
        if after and "cache_dir" in after and (note := options.cache_note(settings)):
            reporter.warning(f"{note} Choose another place with --cache-dir or XDG_CACHE_HOME.")
        return reporter


def host_runner(reporter: Reporter) -> HostRunner:
    """The door to processes of this machine."""
    from core.process import HostRunner

    return HostRunner(options.environment(), echo=reporter.detail, sink=reporter.detail)


def echo_error(line: str) -> None:
    """A line that a command has written to its standard error, on ours."""
    click.echo(line, err=True)


def print_json(value: object) -> None:
    """A noun, or JSON values, on standard output."""
    from core.model import to_json

    click.echo(json.dumps(to_json(value), indent=2, ensure_ascii=False))


def open_bucket(text: str, reporter: Reporter, *, dry_run: bool = False, existing: bool = True) -> Bucket:
    """The bucket that a person named; in a dry run one that tells each write and does none.

    Raises:
        RequestError: it is a folder that is not there, and should be.
    """
    from promotion.storage.bucket_url import open_bucket as opened
    from promotion.storage.directory_bucket import DirBucket
    from promotion.storage.dry_run import DryRunBucket

    bucket = opened(text)
    if existing and isinstance(bucket, DirBucket) and not bucket.root.is_dir():
        raise RequestError(f"{text} is not a bucket's folder.", hint="Stage a set first, or give its --bucket.")
    if not dry_run:
        return bucket
    click.get_current_context().call_on_close(lambda: reporter.line("dry run: nothing was changed"))
    return DryRunBucket(bucket, lambda line: reporter.line(f"  would {line}"))
