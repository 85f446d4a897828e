"""The command line: every command, and nothing but the wiring between options and the work."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ci_build import options
from ci_build.errors import CiBuildError, MachineError, RequestError

if TYPE_CHECKING:
    from ci_build.report import Reporter
    from ci_build.runner import HostRunner

_INTERRUPTED, _BROKEN_PIPE = 130, 141
_WITH_BUILD_OPTIONS = ("dist_wheels", "release")


class _State:
    """What the group hands to its commands: options given before the subcommand."""

    def __init__(self, before: Mapping[str, Any]) -> None:
        self.before = before

    def settings(self, after: Mapping[str, Any]) -> options.Settings:
        return options.Settings(after, self.before)


def _reporter(settings: options.Settings) -> Reporter:
    from ci_build.report import Reporter

    place = options.Surroundings.detect()
    return Reporter(terminal=place.terminal, groups=place.groups, verbose=settings.flag("verbose"))


def _runner(reporter: Reporter) -> HostRunner:
    from ci_build.runner import HostRunner

    return HostRunner(options.environment(), echo=reporter.detail, sink=reporter.detail)


def _print_json(value: object) -> None:
    from ci_build.model import to_json

    click.echo(json.dumps(to_json(value), indent=2, ensure_ascii=False))


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@options.build_options
@click.pass_context
def main(context: click.Context, /, **before: object) -> None:
    """Build, repair, gate and release the wheels of JAX for AMD ROCm.

    Options of a build stand before or after the command; each can also be set as CI_BUILD_<NAME> in the environment.
    """
    if context.invoked_subcommand not in (None, *_WITH_BUILD_OPTIONS):
        options.refuse_misplaced(before, context.invoked_subcommand)
    context.obj = _State(before)


@main.command("dist_wheels")
@options.build_options
@click.pass_obj
def dist_wheels(state: _State, /, **after: object) -> None:
    """Make a wheel set: wheels, wheels.json, constraints.txt, pylock.toml, SHA256SUMS."""
    from ci_build import build

    settings = state.settings(after)
    reporter = _reporter(settings)
    made = build.dist_wheels(settings, reporter, _runner(reporter), "build")
    if made is not None and settings.flag("json"):
        _print_json(build.receipt(made))
    elif made is not None:
        build.show_receipt(made, reporter)


@main.command()
@click.argument("wheels", nargs=-1, required=True, metavar="WHEEL|DIR|URL…")
@click.option("--targets", metavar="GFX,…", help="Targets that all device code must be for, and no others.")
@click.option("--rocm-version", metavar="X.Y.Z", help="ROCm whose libraries may be needed; else those of any.")
@click.option("--no-verify", is_flag=True, help="Skip RECORD and the checksums of device code.")
@click.option("--json", "as_json", is_flag=True, help="Print the reports as JSON.")
@click.pass_obj
def inspect(
    state: _State,
    wheels: tuple[str, ...],
    targets: str | None,
    rocm_version: str | None,
    *,
    no_verify: bool,
    as_json: bool,
) -> None:
    """Say everything about wheels, anybody's: parts, targets, RUNPATH, NEEDED, symbols, metadata, findings."""
    from ci_build import inspection
    from ci_build.model import RocmVersion

    reporter = _reporter(state.settings({}))
    report = inspection.inspect(
        wheels,
        expected=targets,
        rocm=RocmVersion(text=rocm_version) if rocm_version else None,
        verify=not no_verify,
        progress=reporter,
        runner=_runner(reporter),
    )
    if as_json:
        _print_json(report)
    else:
        inspection.show(report)
    inspection.raise_for_errors(report)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the lists and the table as JSON.")
def targets(*, as_json: bool) -> None:
    """List gfx targets: which the compiler supports, which the default wheels hold, which are gated."""
    from ci_build import targets as table

    if as_json:
        _print_json({**table.lists(), "targets": table.table()})
        return
    from ci_build.report import print_table

    marks = {True: "yes", False: ""}
    rows = [
        (
            row.name,
            row.product,
            row.architecture,
            marks[row.xla],
            marks[row.default],
            marks[row.gated],
            marks[row.aiter],
        )
        for row in table.table()
    ]
    print_table(("target", "product", "architecture", "compiler", "default wheels", "gated", "AITER"), rows)


@main.command()
@click.option("--local", is_flag=True, help="The whole way on this machine, into a bucket that is a folder.")
@click.option("--bucket", metavar="DIR", help="The folder.")
@options.build_options
@click.pass_obj
def release(state: _State, /, *, local: bool, bucket: str | None, **after: object) -> None:
    """Build a set, stage it, gate it, promote it to `v2`, and print the line that installs it."""
    from ci_build import release as way

    if not local:
        raise RequestError("release needs --local.", hint="Run `ci_build release --local`.")
    settings = state.settings({**after, "bucket": bucket})
    reporter = _reporter(settings)
    receipt = way.release_local(settings, reporter, _runner(reporter))
    if receipt is not None and settings.flag("json"):
        _print_json(receipt)


@main.command()
@click.argument("wheel_set", metavar="SET", type=click.Path(path_type=Path))
@options.bucket_option
@click.pass_obj
def stage(state: _State, wheel_set: Path, bucket: Path) -> None:
    """Put the wheel set in folder SET under its digest in `v2-staging`; never overwrites."""
    from ci_build import release as way

    staged = way.stage(wheel_set, bucket, _reporter(state.settings({})))
    click.echo(f"{staged.index}/{staged.digest}")


@main.command()
@click.argument("name", metavar="GATE", type=click.Choice([*options.GATES, "all"]))
@click.argument("staged", metavar="INDEX/DIGEST")
@options.bucket_option
@click.pass_obj
def gate(state: _State, name: str, staged: str, bucket: Path) -> None:
    """Run a gate, or all, on a staged set and keep the evidence beside it."""
    from ci_build import release as way

    reporter = _reporter(state.settings({}))
    way.gate(name, way.parse_staged(staged), bucket, reporter, _runner(reporter))


@main.command()
@click.argument("staged", metavar="INDEX/DIGEST")
@options.bucket_option
@click.pass_obj
def promote(state: _State, staged: str, bucket: Path) -> None:
    """Promote a staged set to `v2`, if the policy finds its evidence enough."""
    from ci_build import release as way

    reporter = _reporter(state.settings({}))
    way.promote(way.parse_staged(staged), bucket, reporter)


@main.group()
def index() -> None:
    """Work with the package index of a bucket."""


@index.command("serve")
@options.bucket_option
@click.option(
    "--port", default=options.SERVE_PORT, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
def serve(bucket: Path, port: int, host: str) -> None:
    """Serve a bucket over HTTP until interrupted."""
    from promotion.serve import IndexServer

    if not bucket.is_dir():
        raise RequestError(f"{bucket} is not a folder.", hint="Make a release first, or give its --bucket.")
    with IndexServer(bucket, host=host, port=port) as server:
        click.echo(f"serving {bucket} at {server.url}")
        server.wait()


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; errors become one line and their exit code."""
    # A CI service that cancels a job sends SIGTERM: clean up as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A terminal that cannot show a character gets another one, not a traceback.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        main.main(args=arguments, prog_name="ci_build", standalone_mode=False)
    except CiBuildError as error:
        from ci_build.runner import without_credentials

        click.echo(f"error: {without_credentials(str(error))}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("\ninterrupted: nothing half-written was left behind; run the same command to go on", err=True)
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read our words has gone; Python would complain once more when it flushes at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.dup2(nowhere, sys.stderr.fileno())
        return _BROKEN_PIPE
    except OSError as error:
        # shutil.Error lists (from, to, why) of all files that could not be copied.
        listed = error.args[0] if error.args and isinstance(error.args[0], list) else []
        what = str(listed[0][2]) if listed else error.strerror or str(error)
        where = f": {error.filename}" if error.filename else ""
        click.echo(f"error: {what}{where}. Mend that, then run the same command.", err=True)
        return MachineError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(run())
