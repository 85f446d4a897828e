"""`ci_build release`, and `ci_build set stage` and `ci_build promote`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from ci_build.cli.options.cluster_options import cluster_options, with_cluster
from ci_build.cli.options.environment import (
    ledger_request,
    step_summary,
)
from ci_build.cli.options.release_steps import (
    STEP_OPTION_NAMES,
    STEP_OPTIONS,
    USUAL_STEPS,
    local_options,
    release_options,
)
from ci_build.cli.options.request_conversion import wheel_set_request
from ci_build.cli.options.settings import Settings, require_folder
from ci_build.cli.options.shared_options import (
    CHANNELS,
    PATH,
    Values,
    allow_lower_option,
    allow_unprotected_option,
    bucket_option,
    channel_option,
    dry_run_option,
    json_option,
    ledger_key_option,
    option,
    require_explicit_channel,
    trust_config_option,
)
from ci_build.cli.options.table import USUAL, build_options
from ci_build.release.release_request import ReleaseOptions, ReleaseStep
from ci_build.wheelset import set_build as dist_wheels
from core.defaults import defaults
from core.errors import RequestError
from core.targets import index_of
from promotion import stage as promotion_stage

if TYPE_CHECKING:  # At run time, it would load requests.
    from core.http.client import Connect

_LOCAL_TABLES = ("release_local", "build")


@cloup.command(
    cls=LongCommand,
    usual=("local", *USUAL_STEPS, *USUAL),
)
@cloup.option_group(
    "Release",
    option("--local", "Release on the channel `local`, into a folder by default."),
    option(
        "--bucket DIR|URL",
        (
            "The bucket: a folder, or s3://NAME/PREFIX; required without --local.  "
            f"[default: {defaults()['release_local']['bucket']}]"
        ),
        variable=True,
    ),
    option(
        "--channel",
        f"Channel of the policy, without --local.  [default: {CHANNELS[-1]}]",
        choices=CHANNELS[1:],
        variable=True,
    ),
    *STEP_OPTIONS,
)
@build_options(*_LOCAL_TABLES)
@cluster_options
@click.pass_obj
def release(state: State, /, *, local: bool, **after: object) -> None:
    """Build, stage, gate and promote a set to `v2`, and print the command that installs it.

    `--local` uses published wheels for two targets, and the policy of the channel
    `local`. Without it, the defaults of `dist_wheels` and the policy of the channel
    apply, the released index is checked through its public URL, and a summary is
    written. A set that lacks evidence of other machines stays staged; the same command
    continues later.
    """
    # Start-up time: the gates load auditwheel.
    from ci_build.release.pipeline import Pipeline, plan_lines
    from ci_build.release.run_report import conclude, run_set

    given: dict[str, Any] = {name: after.pop(name) for name in STEP_OPTION_NAMES}
    settings = state.settings(after)
    if local:
        settings = state.settings({**after, "corpus": given["corpus"]}, _LOCAL_TABLES)
    reporter = state.reporter(after)
    runner = host_runner(reporter)
    connect = connector(reporter)
    make_options = local_options if local else _options
    options = make_options(given, settings, connect)
    if local:
        require_folder(Path(options.bucket), "--bucket")
    opened = open_bucket(options.bucket, reporter, existing=not local)
    request = wheel_set_request(settings, reporter, runner, connect)
    request = with_cluster(
        request, options.cluster, other_use=ReleaseStep.GATES in options.steps
    )
    pipeline = Pipeline(
        bucket=opened, options=options, reporter=reporter, runner=runner
    )
    index = index_of(request.build.targets)
    pythons = request.build.python_versions
    pipeline.check_start(index, pythons, dry_run=request.dry_run)
    prepared = dist_wheels.prepare(request, reporter, runner, connect)
    as_json = settings.flag("json")
    if request.dry_run:
        lines = dist_wheels.dry_run_lines(prepared, request)
        show_plan([*lines, *plan_lines(options)], as_json=as_json)
        return
    done = run_set(pipeline, partial(pipeline.release, request, prepared))
    conclude(
        [done],
        options,
        step_summary(),
        reporter,
        print_json if as_json else None,
        command="release",
        index=index,
    )


def _options(given: Values, settings: Settings, connect: Connect) -> ReleaseOptions:
    if not settings.given("bucket"):
        raise RequestError(
            "`release` requires --bucket or --local.",
            hint="Run `ci_build release --local`.",
        )
    options = release_options(
        given,
        bucket=settings.text("bucket"),
        channel=given["channel"] or CHANNELS[-1],
        settings=settings,
        connect=connect,
    )
    if ReleaseStep.BUILD not in options.steps:
        text = "--steps of a release must include build, which finds the set."
        raise RequestError(text, hint="Use `gate` and `promote` for single steps.")
    return options


@cloup.command()
@click.argument("wheel_set", metavar="SET", type=PATH)
@bucket_option
@dry_run_option
@json_option
@click.pass_obj
def stage(
    state: State, /, wheel_set: Path, bucket: str, *, dry_run: bool, as_json: bool
) -> None:
    """Upload the set in directory SET to `v2-staging`, under its digest; nothing is overwritten."""
    reporter = state.reporter()
    opened = open_bucket(bucket, reporter, dry_run=dry_run)
    with reporter.group("stage"):
        staged = promotion_stage.stage(opened, wheel_set, progress=reporter)
    if as_json:
        print_json(
            {
                "index": staged.index,
                "digest": staged.digest,
                "set": str(staged),
                "installable": staged.simple,
            }
        )
        return
    click.echo(str(staged))


@cloup.command()
@click.argument("staged", metavar="SET")
@channel_option
@bucket_option
@click.option(
    "--from",
    "source",
    metavar="DIR|URL",
    help=(
        "Bucket from which the set and its evidence are copied before, such as that of"
        " another channel."
    ),
)
@dry_run_option
@trust_config_option
@allow_lower_option
@ledger_key_option
@allow_unprotected_option
@json_option
@click.pass_obj
def promote(
    state: State,
    /,
    staged: str,
    channel: str,
    bucket: str,
    source: str | None,
    trust_config: Path | None,
    ledger_key: Path | None,
    allow_unprotected: tuple[str, str] | None,
    *,
    allow_lower: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Promote a set to `v2` if the policy accepts its evidence.

    SET is INDEX/DIGEST as printed by `set stage`, or the set's directory. With --from, the
    set comes from another bucket, and the policy judges its evidence again.
    """
    # Start-up time: the gates load auditwheel.
    from ci_build.release import gating
    from ci_build.release import promotion_steps as steps

    require_explicit_channel(bucket)
    reporter = state.reporter()
    opened = open_bucket(bucket, reporter, dry_run=dry_run)
    if source:
        found = gating.carry(staged, open_bucket(source, reporter), opened, reporter)
    else:
        found = gating.find_set(staged, opened, reporter)
    done = steps.promote(
        found,
        opened,
        ledger_request(ledger_key, channel, allow_unprotected, bucket),
        reporter,
        host_runner(reporter),
        trust_config,
        allow_lower=allow_lower,
    )
    if as_json:
        print_json(
            {
                "index": done.simple,
                "ledger_entry": done.entry.number,
                "tiers": done.promoted.tiers,
                "failing": done.promoted.policy.get("failing", {}),
                "exceptions": done.exceptions,
                "attested": done.attested,
                "new": done.new,
                "warnings": done.warnings,
            }
        )
