"""The command line: every command, and nothing but the wiring between options and the work.

A new command is a module here with a `click.Command` in it, and a line in COMMANDS.
"""

from __future__ import annotations

import io
import os
import signal
import sys

import click

from ci_build.cli import options
from ci_build.cli.common import LazyGroup, State
from core.errors import CiBuildError, MachineError

COMMANDS = {
    "release": "ci_build.cli.commands.release:release",
    "dist_wheels": "ci_build.cli.commands.dist_wheels:dist_wheels",
    "matrix": "ci_build.cli.commands.matrix:matrix",
    "accepts": "ci_build.cli.commands.accepts:accepts",
    "shell": "ci_build.cli.commands.shell:shell",
    "reproduce": "ci_build.cli.commands.reproduce:reproduce",
    "adopt": "ci_build.cli.commands.adopt:adopt",
    "stage": "ci_build.cli.commands.release:stage",
    "gate": "ci_build.cli.commands.gate:gate",
    "attest": "ci_build.cli.commands.attest:attest",
    "promote": "ci_build.cli.commands.release:promote",
    "policy": "ci_build.cli.commands.policy:policy",
    "keys": "ci_build.cli.commands.keys:keys",
    "bundle": "ci_build.cli.commands.bundle:bundle",
    "rollback": "ci_build.cli.commands.index_operations:rollback",
    "yank": "ci_build.cli.commands.index_operations:yank",
    "unyank": "ci_build.cli.commands.index_operations:unyank",
    "quarantine": "ci_build.cli.commands.index_operations:quarantine",
    "free": "ci_build.cli.commands.index_operations:free",
    "pin": "ci_build.cli.commands.index_operations:pin",
    "unpin": "ci_build.cli.commands.index_operations:unpin",
    "retention": "ci_build.cli.commands.index_operations:retention",
    "history": "ci_build.cli.commands.index_operations:history",
    "compat": "ci_build.cli.commands.compatibility:compat",
    "verify": "ci_build.cli.commands.index_operations:verify",
    "index": "ci_build.cli.commands.index:index",
    "bucket": "ci_build.cli.commands.bucket:bucket",
    "kernels": "ci_build.cli.commands.kernels:kernels",
    "inspect": "ci_build.cli.commands.inspect:inspect",
    "rocm": "ci_build.cli.commands.rocm:rocm",
    "images": "ci_build.cli.commands.images:images",
    "build_manylinux_dockers": "ci_build.cli.commands.image_commands:build_manylinux_dockers",
    "build_manylinux_therock_dockers": "ci_build.cli.commands.image_commands:build_manylinux_therock_dockers",
    "build_base_dockers": "ci_build.cli.commands.image_commands:build_base_dockers",
    "build_base_therock_dockers": "ci_build.cli.commands.image_commands:build_base_therock_dockers",
    "build_dockers": "ci_build.cli.commands.run_image:build_dockers",
    "test": "ci_build.cli.commands.run_image:trial",
    "test_docker": "ci_build.cli.commands.run_image:test_docker",
    "cache": "ci_build.cli.commands.cache:cache",
    "targets": "ci_build.cli.commands.targets:targets",
    "doctor": "ci_build.cli.commands.doctor:doctor",
}
"""Name of a command -> where it is; imported when it is used."""

_INTERRUPTED, _BROKEN_PIPE = 130, 141
_WITH_BUILD_OPTIONS = ("dist_wheels", "release")
_WITH_SOME = frozenset(name for name in COMMANDS if name.startswith(("build_", "test")))
"""Commands about images: they take some of the options of builds, before or after their name."""


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@options.build_options
@click.pass_context
def main(context: click.Context, /, **before: object) -> None:
    """Build, repair, gate and release the wheels of JAX for AMD ROCm.

    Options of a build stand before or after the command; each can also be set as CI_BUILD_<NAME> in the environment.
    """
    if context.invoked_subcommand not in (None, *_WITH_BUILD_OPTIONS):
        options.refuse_misplaced(before, context.invoked_subcommand, _taken(context))
    context.obj = State(before)


def _taken(context: click.Context) -> set[str]:
    """Names of the build options that the command takes as well."""
    name = context.invoked_subcommand
    if name not in _WITH_SOME:
        return set()
    command = main.get_command(context, name)
    return {parameter.name for parameter in command.params if parameter.name} if command else set()


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
        from core.process import without_credentials

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
