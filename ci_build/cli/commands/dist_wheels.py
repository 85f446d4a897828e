"""`ci_build dist_wheels`."""

from __future__ import annotations

import click
import cloup

from ci_build.cli import options
from ci_build.cli.common import State, host_runner, print_json


@cloup.command("dist_wheels")
@options.build_options("build")
@click.pass_obj
def dist_wheels(state: State, /, **after: object) -> None:
    """Build a wheel set: wheels, wheels.json, constraints.txt, pylock.toml, SHA256SUMS.

    Options may also stand before the command, and each can be set as CI_BUILD_<NAME> in the environment.
    """
    from ci_build.build import dist_wheels

    settings, reporter = state.settings(after), state.reporter(after)
    made = dist_wheels.dist_wheels(settings, reporter, host_runner(reporter), "build")
    if made is not None and settings.flag("json"):
        print_json(dist_wheels.receipt(made))
    elif made is not None:
        dist_wheels.show_receipt(made, reporter)
