"""`ci_build dist_wheels`."""

from __future__ import annotations

import click

from ci_build.cli import options
from ci_build.cli.common import State, host_runner, print_json


@click.command("dist_wheels")
@options.build_options
@click.pass_obj
def dist_wheels(state: State, /, **after: object) -> None:
    """Make a wheel set: wheels, wheels.json, constraints.txt, pylock.toml, SHA256SUMS."""
    from ci_build.build import dist_wheels

    settings, reporter = state.settings(after), state.reporter(after)
    made = dist_wheels.dist_wheels(settings, reporter, host_runner(reporter), "build")
    if made is not None and settings.flag("json"):
        print_json(dist_wheels.receipt(made))
    elif made is not None:
        dist_wheels.show_receipt(made, reporter)
