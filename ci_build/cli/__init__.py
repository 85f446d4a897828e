"""The command line: the table of commands, and the errors and exit codes of a run.

A new command needs a module in `commands` with a `click.Command`, and a line in
SECTIONS.
"""

from __future__ import annotations

import difflib
import io
import os
import signal
import sys
from pathlib import Path

import click
import cloup
from click.core import ParameterSource

from ci_build.cli.common import LazyGroup, State, project_defaults
from ci_build.cli.options.environment import refuse_unknown
from ci_build.cli.options.project_file import find_project_file
from ci_build.cli.options.shared_options import option
from ci_build.cli.options.table import chosen_options, option_names
from core.errors import CiBuildError, MachineError, RequestError
from core.os_errors import describe
from core.own_files import program_version
from core.process import without_credentials
from core.terminal import fold, width_of

SECTIONS = {
    "Build": {
        "dist_wheels": (
            "dist_wheels",
            "Build a wheel set.",
            "--payload=published --targets=gfx942,gfx1151",
        ),
        "set": ("", "Make, compare, stage, sign and archive wheel sets.", ""),
        "rocm": (
            "rocm",
            "Show the ROCm of a build, or list builds.",
            "--list --family=gfx94X-dcgpu",
        ),
        "sources": (
            "sources",
            "List or update the pinned sources of jax.",
            "--update --dry-run",
        ),
        "kernels": ("", "List and build the kernels of jax_aiter.", ""),
        "images": ("", "Build the builder image; update docker/images.toml.", ""),
    },
    "Check": {
        "inspect": ("inspect", "Report contents and problems of wheels.", "dist"),
        "gate": (
            "gate",
            "Run a gate on a set and keep its evidence.",
            "structure dist --bucket=bucket",
        ),
        "doctor": ("doctor", "Report problems of GPU, driver, ROCm and Python.", ""),
    },
    "Release": {
        "release": (
            "release",
            "Build, gate and promote a set on this machine.",
            "--local --targets=gfx1151",
        ),
        "nightly": (
            "nightly",
            "Release the newest ROCm and jax to an index.",
            "multi-arch --bucket=s3://wheels --payload=published",
        ),
        "promote": (
            "release",
            "Release a staged set if the policy allows it.",
            "multi-arch/291ec8e31f26 --bucket=s3://wheels",
        ),
        "index": ("", "Show, verify, change and serve a released index.", ""),
    },
    "Machine and project": {
        "status": (
            "status",
            "Show running work, the cache and staged sets.",
            "--bucket=bucket",
        ),
        "targets": ("targets", "List GPU targets.", ""),
        "cache": ("cache", "List or clean the cache.", "--cache-limit=20GB"),
        "ci": ("", "Print jobs of CI services; check policy, keys and docs.", ""),
    },
}
"""Title of a help section -> commands, whose summaries fit a terminal of 80 columns."""
GROUPS = {
    "kernels": {
        "build": (
            "kernels",
            "Build the wheel jax_aiter.",
            "--targets=gfx942 --aiter-source=sdist",
        ),
        "list": ("kernels", "List the kernel modules.", "--targets=gfx942,gfx1151"),
        "update": ("kernels", "Lock the files of AITER that modules use.", "sdist"),
    },
    "images": {
        "build": (
            "images",
            "Build the image in which wheels are compiled.",
            "--dry-run",
        ),
        "update": ("images", "Update the digests in docker/images.toml.", ""),
    },
    "set": {
        "adopt": (
            "adopt",
            "Make a wheel set from existing wheels.",
            "wheels/*.whl --out=adopted",
        ),
        "repair": (
            "repair",
            "Repair existing wheels for chosen GPU targets.",
            "wheels/*.whl --targets=gfx1151 --out=repaired",
        ),
        "reproduce": ("reproduce", "Build a set again and compare it.", "dist"),
        "stage": (
            "release",
            "Upload a set to the staging index.",
            "dist --bucket=bucket",
        ),
        "collect": (
            "staging",
            "List staged sets, and remove old ones.",
            "multi-arch --days=7",
        ),
        "bundle": (
            "bundle",
            "Archive a set for machines without a network.",
            "multi-arch/291ec8e31f26",
        ),
        "attest": (
            "attest",
            "Sign wheels, or verify their attestations.",
            "multi-arch/291ec8e31f26 --bucket=s3://wheels",
        ),
    },
    "index": {
        "init": (
            "index_init",
            "Prepare a bucket for its first release.",
            "s3://wheels --channel=nightly",
        ),
        "history": ("history", "List the changes of an index.", "multi-arch"),
        "verify": (
            "verify",
            "Recompute an index, report differences, repair it.",
            "multi-arch --channel=nightly",
        ),
        "rollback": (
            "index_operations",
            "Return an index to an earlier state.",
            "multi-arch --reason='wrong results'",
        ),
        "yank": (
            "index_operations",
            "Hide sets from users who do not pin them.",
            "multi-arch/3 --reason='wrong results'",
        ),
        "quarantine": (
            "index_operations",
            "Withdraw sets, also from rollbacks.",
            "multi-arch/3 --reason='wrong results'",
        ),
        "pin": (
            "index_operations",
            "Protect sets from retention.",
            "multi-arch/3 --reason='used in production'",
        ),
        "retention": (
            "index_operations",
            "Remove old sets from an index.",
            "multi-arch --days=30",
        ),
        "compat": (
            "compatibility",
            "Write the compatibility tables of an index.",
            "multi-arch --out=compatibility.md",
        ),
        "serve": ("index", "Serve a bucket over HTTP.", "--bucket=bucket"),
        "check": (
            "index",
            "Install a released set as users do.",
            "http://127.0.0.1:8000/v2/multi-arch/simple/",
        ),
    },
    "ci": {
        "matrix": (
            "matrix",
            "Print the builds of a CI service.",
            "--jax-version=0.12.0 --payload=published",
        ),
        "tests": (
            "matrix",
            "Print the test jobs of staged sets.",
            "multi-arch/3 --when=nightly",
        ),
        "policy": (
            "policy",
            "Check whether the policy lets a set be promoted.",
            "multi-arch/291ec8e31f26 --channel=nightly",
        ),
        "keys": (
            "keys",
            "Create or show a key that signs evidence.",
            "--out=signing-key",
        ),
        "docs": ("docs", "Build the documentation site.", "--out=site"),
    },
}
"""Name of a group -> its commands."""

_INTERRUPTED = 130
_BROKEN_PIPE = 141
_NEAR = 0.7
"""Least similarity of a name that is suggested instead of an unknown one."""
_WITH_BUILD_OPTIONS = ("dist_wheels", "nightly", "release")


def _print_version(
    context: click.Context, _parameter: click.Parameter, asked: bool
) -> None:
    if asked:
        click.echo(f"ci_build {program_version()}")
        context.exit()


class _Program(LazyGroup):
    """The program; options of a build may also stand before the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move the options before a command that builds behind it.

        Raises:
            RequestError: the command has no such options.
        """
        words = [*args]
        super().parse_args(ctx, args)
        command, *after = self._rest(ctx)
        if command in _WITH_BUILD_OPTIONS:
            ctx.args = [*words[: len(words) - len(after) - 1], *after]
            return ctx.args
        misplaced = [
            "--" + name.replace("_", "-")
            for name in sorted(set(option_names()) - {"verbose", "quiet"})
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        ]
        if misplaced:
            raise RequestError(
                f"`{command}` does not accept {', '.join(misplaced)}.",
                hint=f"See `ci_build {command} --help`.",
            )
        return ctx.args

    @staticmethod
    def _rest(ctx: click.Context) -> list[str]:
        """Return the command and the words behind it."""
        return [*ctx._protected_args, *ctx.args]


@cloup.group(
    cls=_Program,
    sections=SECTIONS,
    groups=GROUPS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@option(
    "--version",
    "Print the version of ci_build.",
    is_eager=True,
    expose_value=False,
    callback=_print_version,
)
@chosen_options("verbose", "quiet")
@chosen_options(*(set(option_names()) - {"verbose", "quiet"}), read=False)
@click.pass_context
def main(
    context: click.Context, /, *, verbose: bool | None, quiet: bool | None
) -> None:
    """Build, repair, gate and release the wheels of JAX for AMD ROCm.

    `ci_build COMMAND --help` lists the options of a command.
    """
    refuse_unknown(option_names())
    project = find_project_file(Path.cwd())
    context.obj = State(verbose=bool(verbose), quiet=bool(quiet), project=project)
    name = context.invoked_subcommand
    if name and (command := main.get_command(context, name)):
        context.default_map = {name: project_defaults(command, project)}


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; an error is reported in one line."""
    # A CI service that cancels a job sends SIGTERM: clean up as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Replace characters that the terminal cannot show instead of raising
    # UnicodeEncodeError.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        ended = main.main(args=arguments, prog_name="ci_build", standalone_mode=False)
    except CiBuildError as error:
        _report_error(f"error: {without_credentials(str(error))}")
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        _report_error(f"error: {_sentence(error)}")
        return error.exit_code
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except (KeyboardInterrupt, click.Abort) as error:
        click.echo(f"\nInterrupted. {error}".rstrip(), err=True)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of the output is gone. Without this, Python would raise again when
        # it flushes the output at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.dup2(nowhere, sys.stderr.fileno())
        return _BROKEN_PIPE
    except OSError as error:
        _report_error(f"error: {without_credentials(describe(error))}")
        return MachineError.exit_code
    # A command that calls `exit` of its context returns its exit code here.
    return ended if isinstance(ended, int) else 0


def _sentence(error: click.ClickException) -> str:
    """Return an error of click as a sentence with a hint."""
    text = error.format_message()
    context = getattr(error, "ctx", None)
    hint = f"Run `{context.command_path} --help`." if context else ""
    if isinstance(error, click.NoSuchOption | click.exceptions.NoSuchCommand):
        text = error.message
        name = getattr(error, "option_name", "") or getattr(error, "command_name", "")
        near = difflib.get_close_matches(name, error.possibilities or (), 1, _NEAR)
        if near:
            text = f"{text} Did you mean {near[0]!r}?"
        elif name in ("-v", "-q", "--verbose", "--quiet"):
            hint = f"Write it before the command: `ci_build {name} …`."
    text = " ".join(text.split())
    stop = "" if text.endswith((".", "?")) else "."
    return f"{text}{stop} {hint}".rstrip()


def _report_error(text: str) -> None:
    word, rest = fold(text, width_of(sys.stderr)).split(":", 1)
    click.echo(f"{click.style(f'{word}:', fg='red', bold=True)}{rest}", err=True)
