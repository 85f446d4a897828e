"""The command `ci_build nightly`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import cloup

from ci_build.cli.common import (
    LongCommand,
    State,
    connector,
    host_runner,
    open_bucket,
    print_json,
    show_plan,
)
from ci_build.cli.options.cluster_options import cluster_options
from ci_build.cli.options.environment import step_summary
from ci_build.cli.options.release_steps import (
    STEP_OPTION_NAMES,
    STEP_OPTIONS,
    USUAL_STEPS,
    release_options,
)
from ci_build.cli.options.shared_options import CHANNELS, FILE, option, refuse_typed
from ci_build.cli.options.table import (
    OUTPUT_OPTIONS,
    USUAL,
    build_options,
    option_names,
)
from ci_build.release.release_request import ReleaseStep
from core.errors import CiBuildError, RequestError


@cloup.command(
    cls=LongCommand,
    usual=("redo", "table", *USUAL_STEPS, *USUAL),
    examples=("nightly multi-arch --bucket=s3://nights --payload=published",),
)
@click.argument("index")
@click.argument("rows", metavar="[NIGHT]...", nargs=-1)
@cloup.option_group(
    "Night",
    option(
        "--bucket DIR|URL",
        "The bucket: a folder, or s3://NAME/PREFIX?endpoint_url=….",
        variable=True,
        required=True,
    ),
    option(
        "--channel",
        "Channel of the policy.",
        choices=CHANNELS[1:],
        variable=True,
        default="nightly",
    ),
    option("--redo", "Build inputs that were done before, as the next post release."),
    option(
        "--table FILE",
        (
            "TOML table of nights, such as ci_build/release/continuous.toml; each uses"
            " BUCKET/NAME."
        ),
        type=FILE,
    ),
    *STEP_OPTIONS,
)
@build_options("build")
@cluster_options
@click.pass_obj
def nightly(
    state: State,
    /,
    *,
    index: str,
    bucket: str,
    redo: bool,
    table: Path | None,
    rows: tuple[str, ...],
    **after: object,
) -> None:
    """Release the newest ROCm and jax to INDEX, unless they were done before.

    INDEX is multi-arch or a GPU family. The newest ROCm and jax are built or taken,
    gated and promoted; --jax-version may also be `newest`, the default, or `head`.
    Without --targets, the set is for the targets that the policy requires. A night
    without changes ends with 0. A set that lacks evidence of other machines stays
    staged, and a later run promotes it. NIGHT selects rows of --table.
    """
    # Start-up time: the gates load auditwheel.
    from ci_build.cli.options.nightly_options import NightOptions, read_table
    from ci_build.release import nightly_run
    from ci_build.release.pipeline import Pipeline
    from ci_build.release.run_report import SetRun, conclude
    from ci_build.release.run_summary import SetSummary

    given: dict[str, Any] = {name: after.pop(name) for name in STEP_OPTION_NAMES}
    if rows and table is None:
        raise RequestError("NIGHT needs --table.", hint="Give --table.")
    reporter = state.reporter(after)
    settings = state.settings(after)
    channel = given["channel"]
    connect = connector(reporter)
    runner = host_runner(reporter)
    options = release_options(
        given, bucket=bucket, channel=channel, settings=settings, connect=connect
    )
    if ReleaseStep.BUILD not in options.steps:
        build = [name for name in option_names() if name not in OUTPUT_OPTIONS]
        hint = "Omit it, or change --steps."
        refuse_typed((*build, "redo"), "without the step build", hint)
    open_bucket(bucket, reporter)  # refuses one that does not exist
    night_options = NightOptions(
        make=state.settings,
        index=index,
        redo=redo,
        after=after,
        release=options,
    )
    as_json = settings.flag("json")
    lines: list[str] = []
    sets: list[SetRun] = []
    nights = read_table(table, rows) if table else {"": {}}
    for name, row in nights.items():
        title = f"night {name}".strip()
        try:
            if not settings.flag("dry_run"):
                reporter.line(title)
            request = night_options.request(name, row, reporter, runner, connect)
            pipeline = Pipeline(
                bucket=open_bucket(request.options.bucket, reporter, existing=False),
                options=request.options,
                reporter=reporter,
                runner=runner,
            )
            if settings.flag("dry_run"):
                lines += [f"{title}:"] if name else []
                lines += nightly_run.dry_run_lines(request, pipeline, connect)
            else:
                sets += nightly_run.run_night(request, pipeline, connect)
        except CiBuildError as error:
            # A row that fails does not stop the other rows.
            if not name or settings.flag("dry_run"):
                raise
            failed = SetSummary(name=name, state="failed", error=str(error))
            sets.append(SetRun(summary=failed, error=error))
    if settings.flag("dry_run"):
        show_plan(lines, as_json=as_json)
        return
    output = print_json if as_json else None
    conclude(
        sets, options, step_summary(), reporter, output, command="nightly", index=index
    )
