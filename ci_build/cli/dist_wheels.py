"""`ci_build dist_wheels`."""

from __future__ import annotations

import click

from ci_build import options
from ci_build.cli.common import State, host_runner, print_json


@click.command("dist_wheels")
@options.build_options
@click.pass_obj
def dist_wheels(state: State, /, **after: object) -> None:
    """Make a wheel set: wheels, wheels.json, constraints.txt, pylock.toml, SHA256SUMS."""
    from ci_build.making import build

    settings, reporter = state.settings(after), state.reporter(after)
    made = build.dist_wheels(settings, reporter, host_runner(reporter), "build")
    if made is not None and settings.flag("json"):
        print_json(build.receipt(made))
    elif made is not None:
        build.show_receipt(made, reporter)
