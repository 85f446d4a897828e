"""The command `ci_build nightly`."""

from __future__ import annotations

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
from ci_build.cli.options.settings import Settings
from ci_build.cli.options.shared_options import CHANNELS, Values, option, refuse_typed
from ci_build.cli.options.table import (
    OUTPUT_OPTIONS,
    USUAL,
    build_options,
    option_names,
)
from ci_build.release.release_request import ReleaseStep


@cloup.command(
    cls=LongCommand,
    usual=("redo", *USUAL_STEPS, *USUAL),
)
@click.argument("index")
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
    **after: object,
) -> None:
    """Release the newest ROCm and jax to INDEX, unless they were done before.

    INDEX is multi-arch or a GPU family. The newest ROCm and jax are built or taken,
    gated and promoted; --jax-version may also be `newest`, the default, or `head`.
    Without --targets, the set is for the targets that the policy requires. A night
    without changes ends with 0. A set that lacks evidence of other machines stays
    staged, and a later run promotes it.
    """
    # Start-up time: the gates load auditwheel.
    from ci_build.cli.options.nightly_options import night_request
    from ci_build.release import nightly_run
    from ci_build.release.pipeline import Pipeline
    from ci_build.release.run_report import conclude

    given: dict[str, Any] = {name: after.pop(name) for name in STEP_OPTION_NAMES}
    reporter = state.reporter(after)
    settings = state.settings(after)
    connect = connector(reporter)
    options = release_options(
        given,
        bucket=bucket,
        channel=given["channel"],
        settings=settings,
        connect=connect,
    )
    if ReleaseStep.BUILD not in options.steps:
        build = [name for name in option_names() if name not in OUTPUT_OPTIONS]
        hint = "Omit it, or change --steps."
        refuse_typed((*build, "redo"), "without the step build", hint)

    pipeline = Pipeline(
        bucket=open_bucket(options.bucket, reporter),
        options=options,
        reporter=reporter,
        runner=host_runner(reporter),
    )
    dry_run = settings.flag("dry_run")
    pipeline.check_start(index, dry_run=dry_run)

    def make(more: Values) -> Settings:
        return state.settings({**after, **more})

    request = night_request(make, pipeline, connect, index=index, redo=redo)
    as_json = settings.flag("json")
    if dry_run:
        lines = nightly_run.dry_run_lines(request, pipeline, connect)
        show_plan([*lines], as_json=as_json)
        return
    conclude(
        nightly_run.run_night(request, pipeline, connect),
        options,
        step_summary(),
        reporter,
        print_json if as_json else None,
        command="nightly",
        index=index,
    )
