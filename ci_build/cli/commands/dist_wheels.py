"""The command `ci_build dist_wheels`."""

from __future__ import annotations

import click
import cloup

from ci_build.cli.common import (
    LongCommand,
    State,
    connector,
    host_runner,
    print_json,
    show_plan,
)
from ci_build.cli.options.cluster_options import (
    cluster_options,
    cluster_request,
    with_cluster,
)
from ci_build.cli.options.request_conversion import wheel_set_request
from ci_build.cli.options.table import USUAL, build_options
from ci_build.wheelset import set_build as build


@cloup.command(
    "dist_wheels",
    cls=LongCommand,
    usual=(*USUAL, "therock", "kernels", "host", "verbose", "quiet"),
)
@build_options("build")
@cluster_options
@click.pass_obj
def dist_wheels(state: State, /, **after: object) -> None:
    """Build a wheel set: wheels, wheels.json, constraints.txt, pylock.toml, SHA256SUMS.

    Options may also stand before the command, and each can be set as CI_BUILD_<NAME> in
    the environment. With --kernels and --cluster, workers compile the kernels.
    """
    cluster = cluster_request(after)
    settings = state.settings(after)
    reporter = state.reporter(after)
    runner = host_runner(reporter)
    connect = connector(reporter)
    request = with_cluster(
        wheel_set_request(settings, reporter, runner, connect), cluster
    )
    prepared = build.prepare(request, reporter, runner, connect)
    as_json = settings.flag("json")
    if request.dry_run:
        show_plan([*build.dry_run_lines(prepared, request)], as_json=as_json)
        return
    result = build.dist_wheels(request, prepared, reporter, runner)
    if as_json:
        print_json(build.receipt(result))
    else:
        build.show_receipt(result, reporter)
        reporter.close()  # warnings before the last line
        reporter.command(build.install_line(result))
