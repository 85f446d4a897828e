"""The command `ci_build nightly`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup

from ci_build.cli.common import (
    State,
    connector,
    host_runner,
    open_bucket,
    print_json,
    show_plan,
)
from ci_build.cli.options.cluster_options import with_cluster
from ci_build.cli.options.environment import ENV_PREFIX
from ci_build.cli.options.release_options import CHANNELS
from ci_build.cli.options.release_steps import (
    STEP_OPTION_NAMES,
    release_options,
    step_options,
    summary_files,
)
from ci_build.cli.options.request_conversion import wheel_set_request
from ci_build.cli.options.table import build_options, option_names
from ci_build.release.release_request import NO_URL, ReleaseOptions, ReleaseStep
from ci_build.wheelset import set_build as dist_wheels
from core.errors import CiBuildError, RequestError
from core.report import Reporter
from promotion.storage.bucket_url import is_url

if TYPE_CHECKING:  # start-up time: the gates load auditwheel
    from ci_build.cli.options.nightly_options import NightRow
    from ci_build.release.nightly_run import NightRequest
    from ci_build.release.release_run import SetRun
    from ci_build.wheelset.source.source_build import PreparedBuild
    from ci_build.wheelset.wheel_request import WheelSetRequest

_OUTPUT = ("cache_dir", "dry_run", "json", "verbose", "quiet")
"""Build options that have an effect in every run."""
_NAMES = ("channel", "corpus", *STEP_OPTION_NAMES, "signing_key", "ledger_key")


@cloup.command()
@click.option(
    "--index",
    required=True,
    metavar="NAME",
    help="Index of the sets: multi-arch, or a GPU family.",
)
@click.option(
    "--bucket",
    metavar="DIR|URL",
    envvar=ENV_PREFIX + "BUCKET",
    required=True,
    help="The bucket: a folder, or s3://NAME/PREFIX?endpoint_url=….",
)
@click.option(
    "--channel",
    type=click.Choice(CHANNELS[1:]),
    envvar=ENV_PREFIX + "CHANNEL",
    default="nightly",
    show_default=True,
    help="Channel of the policy.",
)
@click.option(
    "--jax",
    type=click.Choice(("newest", "head")),
    help=(
        "jax to build: the newest release, or the newest commit. [default: newest; for"
        " published wheels without --rocm-version, the default --jax-version]"
    ),
)
@click.option(
    "--again",
    is_flag=True,
    help="Build inputs that were done before, as the next post release.",
)
@click.option(
    "--table",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help=(
        "TOML table of nights, such as ci_build/release/continuous.toml; each uses"
        " BUCKET/NAME."
    ),
)
@click.option(
    "--row",
    "rows",
    metavar="NAME",
    multiple=True,
    help="Night of --table; may be repeated.  [default: all]",
)
@step_options
@build_options("build")
@click.pass_obj
def nightly(
    state: State,
    /,
    *,
    index: str,
    bucket: str,
    jax: str | None,
    again: bool,
    table: Path | None,
    rows: tuple[str, ...],
    **after: object,
) -> None:
    """Release the newest ROCm and jax to an index, unless they were done before.

    The newest versions are built or taken, repaired, staged, gated and promoted; the
    released index is checked through its public URL, and a summary is written. A night
    without changes reports this and ends with 0. A set that lacks evidence of other
    machines stays staged, and the summary lists the jobs that produce it; a later run
    promotes the set. Each step resumes. Without --targets, the set is for the targets
    that the policy requires; without an option that selects a ROCm, a build from source
    uses the newest nightly of --therock-listing.
    """
    # Start-up time: the gates load auditwheel.
    from ci_build.cli.options.nightly_options import NightRow, read_table
    from ci_build.release import release_run as runs

    given: dict[str, Any] = {name: after.pop(name) for name in _NAMES}
    if rows and table is None:
        raise RequestError("--row has no effect without --table.", hint="Give --table.")
    reporter = state.reporter(after)
    settings = state.settings(after)
    channel = given["channel"]
    connect = connector(reporter)
    options = release_options(
        given, bucket=bucket, channel=channel, settings=settings, connect=connect
    )
    files = summary_files(given)
    if ReleaseStep.BUILD not in options.steps:
        unused = [
            name
            for name in ("jax", *option_names())
            if name not in _OUTPUT and settings.typed(name)
        ]
        unused = [*unused, *(["jax"] if jax else []), *(["again"] if again else [])]
        _refuse_without_build(unused)
    chosen = read_table(table, rows) if table else (NightRow(name="", values={}),)
    nights = _Nights(
        state, index, jax, again=again, after=after, options=options, reporter=reporter
    )
    as_json = settings.flag("json")
    if settings.flag("dry_run"):
        show_plan(
            [line for row in chosen for line in nights.dry_run_lines(row)],
            as_json=as_json,
        )
        return
    done = tuple(one for row in chosen for one in nights.run(row))
    report = runs.ReleaseReport(
        command="nightly", index=index, options=options, sets=done
    )
    runs.conclude(report, files, reporter, print_json if as_json else None)


def _refuse_without_build(names: Sequence[str]) -> None:
    """Refuse options of the build in a run that builds nothing."""
    if names:
        shown = ", ".join("--" + name.replace("_", "-") for name in names)
        verb = "has" if len(names) == 1 else "have"
        raise RequestError(
            f"{shown} {verb} no effect without the step build.",
            hint="Omit it, or change --steps.",
        )


class _Nights:
    """The nights of one run of the command."""

    def __init__(
        self,
        state: State,
        index: str,
        jax: str | None,
        *,
        again: bool,
        after: Mapping[str, object],
        options: ReleaseOptions,
        reporter: Reporter,
    ) -> None:
        self._state = state
        self._index = index
        self._jax = jax
        self._again = again
        self._after = after
        self._options = options
        self._reporter = reporter
        self._runner = host_runner(reporter)
        self._connect = connector(reporter)

    def run(self, row: NightRow) -> tuple[SetRun, ...]:
        """Do a night; a row that fails does not stop the other rows."""
        # Start-up time: the gates load auditwheel.
        from ci_build.release import nightly_run as night
        from ci_build.release.release_run import SetRun
        from ci_build.release.run_summary import failed

        title = f"night {row.name}".strip()
        self._reporter.line(title)
        try:
            request = self._request(row)
            bucket = open_bucket(request.options.bucket, self._reporter, existing=False)
            return night.run_night(
                request, bucket, self._prepare, self._reporter, self._runner
            )
        except CiBuildError as error:
            if not row.name:
                raise
            return (SetRun(summary=failed(error, name=row.name), error=error),)

    def dry_run_lines(self, row: NightRow) -> Iterator[str]:
        """Yield the lines of a dry run.

        Inputs, whether they were done, and the plan of the build.
        """
        # Start-up time: the gates load auditwheel.
        from ci_build.release import nightly_run as night
        from ci_build.release.release_steps import plan_lines

        request = self._request(row)
        bucket = open_bucket(request.options.bucket, self._reporter, existing=False)
        if row.name:
            yield f"night {row.name}:"
        found = night.find_inputs(request, bucket, self._runner)
        yield from night.found_lines(request, bucket, found)
        if found.wheel_set is not None and found.night is None:
            prepared = self._prepare(found.wheel_set)
            yield from dist_wheels.dry_run_lines(prepared, found.wheel_set)
            yield from plan_lines(
                request.options.bucket,
                request.options.corpus,
                device=request.options.device,
            )

    def _prepare(self, request: WheelSetRequest) -> PreparedBuild:
        return dist_wheels.prepare(request, self._reporter, self._runner, self._connect)

    def _request(self, row: NightRow) -> NightRequest:
        """Return the request of a night; the command line overrides the row."""
        # Start-up time: the gates load auditwheel.
        from ci_build.cli.options.nightly_options import newest_settings
        from ci_build.release.nightly_run import NightRequest, check_index

        options = _below(self._options, row.name)
        wheel_set = None
        if ReleaseStep.BUILD in options.steps:
            values = {
                key: value for key, value in self._after.items() if value is not None
            }
            jax = self._jax or row.values.get("jax")
            both = {
                **{name: value for name, value in row.values.items() if name != "jax"},
                **values,
            }
            if row.name:
                both["out"] = str(
                    Path(self._state.settings(self._after).text("out"), row.name)
                )
            settings = newest_settings(
                lambda more: self._state.settings({**both, **more}),
                self._index,
                options.channel,
                jax,
                self._reporter,
                self._runner,
            )
            wheel_set = wheel_set_request(
                settings, self._reporter, self._runner, self._connect
            )
            wheel_set = with_cluster(
                wheel_set, options.cluster, other_use=ReleaseStep.GATES in options.steps
            )
            check_index(wheel_set.build, self._index)
        return NightRequest(
            name=row.name,
            index=self._index,
            wheel_set=wheel_set,
            options=options,
            again=self._again,
        )


def _below(options: ReleaseOptions, name: str) -> ReleaseOptions:
    """Return options whose bucket and public URL end in the name of a row."""
    if not name:
        return options
    location, mark, parameters = (
        options.bucket.partition("?")
        if is_url(options.bucket)
        else (options.bucket, "", "")
    )
    url = options.public_url
    if url not in ("", NO_URL):
        url = f"{url.rstrip('/')}/{name}"
    return replace(
        options,
        bucket=f"{location.rstrip('/')}/{name}{mark}{parameters}",
        public_url=url,
    )
