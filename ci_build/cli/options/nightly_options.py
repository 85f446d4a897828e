"""Options of a night: the newest ROCm, jax and XLA, and the targets of an index."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci_build.cli.options.cluster_options import with_cluster
from ci_build.cli.options.request_conversion import jax_setting, wheel_set_request
from ci_build.cli.options.rocm_options import SELECTS_A_ROCM
from ci_build.cli.options.settings import Settings, split_list
from ci_build.cli.options.shared_options import Values
from ci_build.release.nightly_run import NightRequest, check_index
from ci_build.release.pipeline import Pipeline
from ci_build.release.release_request import ReleaseStep
from ci_build.wheelset.published import newest_release
from ci_build.wheelset.source.pins import interface_for, releases, repository_url
from ci_build.wheelset.source.source_checkouts import (
    fetch_tree,
    release_of,
    remote_head,
)
from core.errors import RequestError
from core.model import Payload, RocmVersion
from core.process import Runner
from core.report import Reporter
from core.source_request import Checkout
from core.targets import MULTI_ARCH
from promotion.policy.promotion_policy import load_policy

if TYPE_CHECKING:  # At run time, it would load requests.
    from core.http.client import Connect

HEAD = "head"
NEWEST = "newest"
MakeSettings = Callable[[Values], Settings]
"""A function that returns the settings with further values, as if given by the user."""


def newest_settings(
    make: MakeSettings,
    index: str,
    channel: str,
    reporter: Reporter,
    runner: Runner,
) -> Settings:
    """Return settings with the newest jax, ROCm and optionally XLA, and an index's targets.

    Raises:
        RequestError: options contradict each other.
        InputError: a repository or an index does not answer.
    """
    values: dict[str, Any] = {}
    settings = make({})
    from_source = settings.choice("payload", Payload) is Payload.SOURCE
    if not (settings.given("targets") or settings.given("family")):
        required = load_policy(index, channel=channel).required_targets
        default = "default" if index == MULTI_ARCH else index
        values["targets"] = ",".join(required) or default
    if from_source and not any(map(settings.given, SELECTS_A_ROCM)):
        values["therock"] = "nightly"
    values |= _jax(make(values), reporter, runner)
    settings = make(values)
    if from_source and settings.text("xla") == HEAD:
        release = str(jax_setting(settings).value)
        if settings.given("jax_source_dir"):
            release = release_of(Path(settings.text("jax_source_dir")))
        url = repository_url(
            interface_for(release).xla_repository, settings.text("source_mirror")
        )
        values["xla"] = remote_head(url, runner)
        reporter.line(f"--xla=head: {values['xla']}")
    return make(values)


def _jax(settings: Settings, reporter: Reporter, runner: Runner) -> Values:
    """Return the values of the options that name the jax of a night.

    Empty if they or a default name a release or a folder.
    """
    jax = settings.text("jax_version") if settings.given("jax_version") else ""
    folder = settings.given("jax_source_dir")
    if jax in (HEAD, NEWEST) and folder:
        raise RequestError(
            f"--jax-version={jax} and --jax-source-dir both name a jax.",
            hint="Omit one of them.",
        )
    published = settings.choice("payload", Payload) is Payload.PUBLISHED
    if jax == HEAD:
        if published:
            raise RequestError(
                "--jax-version=head contradicts --payload=published.",
                hint="Omit one of them.",
            )
        tree = _head_tree(settings, reporter, runner)
        return {"jax_source_dir": str(tree), "jax_version": None}
    if (jax or folder) and jax != NEWEST:
        return {}
    if published and not jax and not settings.given("rocm_version"):
        return {}
    if not published:
        version = releases()[-1]
    elif settings.given("rocm_version"):
        major = RocmVersion(text=settings.text("rocm_version")).major
        version = newest_release(major, split_list(settings.text("find_links")), runner)
    else:
        text = "--jax-version=newest with --payload=published needs --rocm-version."
        raise RequestError(
            text,
            hint="The ROCm of published wheels is not known before their download.",
        )
    reporter.line(f"--jax-version=newest: {version}")
    return {"jax_version": version}


def _head_tree(settings: Settings, reporter: Reporter, runner: Runner) -> Path:
    """Fetch the newest commit of jax into the cache, and return its folder."""
    url = repository_url("jax", settings.text("source_mirror"))
    commit = remote_head(url, runner)
    folder = settings.cache_dir / "sources" / f"jax-{commit}"
    with reporter.group(f"--jax-version=head: {commit}"):
        fetch_tree(
            Checkout(name="jax", url=url, commit=commit), folder, runner, reporter
        )
    return folder


def night_request(
    make: MakeSettings,
    pipeline: Pipeline,
    connect: Connect,
    *,
    index: str,
    redo: bool,
) -> NightRequest:
    """Return the request of a night.

    Raises:
        RequestError: options contradict each other, or the targets belong to another
            index.
        InputError: a repository or an index does not answer.
    """
    options = pipeline.options
    reporter = pipeline.reporter
    runner = pipeline.runner
    if ReleaseStep.BUILD not in options.steps:
        return NightRequest(index=index, wheel_set=None)
    settings = newest_settings(make, index, options.channel, reporter, runner)
    wheel_set = with_cluster(
        wheel_set_request(settings, reporter, runner, connect),
        options.cluster,
        other_use=ReleaseStep.GATES in options.steps,
    )
    check_index(wheel_set.build, index)
    return NightRequest(index=index, wheel_set=wheel_set, redo=redo)
