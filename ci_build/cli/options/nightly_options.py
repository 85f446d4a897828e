"""Options of a night.

The newest ROCm, release or commit of jax and XLA, targets of an index, and tables of
nights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci_build.cli.options.cluster_options import with_cluster
from ci_build.cli.options.environment import heads_folder
from ci_build.cli.options.project_file import option_values
from ci_build.cli.options.request_conversion import jax_setting, wheel_set_request
from ci_build.cli.options.rocm_options import SELECTS_A_ROCM
from ci_build.cli.options.settings import Settings, split_list
from ci_build.cli.options.shared_options import Values, is_typed
from ci_build.cli.options.table import OUTPUT_OPTIONS, option_names
from ci_build.release.nightly_run import NightRequest, check_index
from ci_build.release.release_request import NO_URL, ReleaseOptions, ReleaseStep
from ci_build.wheelset.published import newest_release
from ci_build.wheelset.source.pins import interface_for, releases, repository_url
from ci_build.wheelset.source.source_checkouts import (
    fetch_tree,
    release_of,
    remote_head,
)
from core.errors import FormatError, RequestError
from core.frozen import frozen
from core.model import Payload, RocmVersion
from core.process import HostRunner, Runner
from core.records import read_toml
from core.report import Reporter
from core.source_request import Checkout
from core.targets import MULTI_ARCH
from promotion.policy.promotion_policy import load_policy
from promotion.storage.bucket_url import is_url

if TYPE_CHECKING:  # At run time, it would load requests.
    from core.http.client import Connect

HEAD = "head"
NEWEST = "newest"
_SCHEMA = 1
MakeSettings = Callable[[Values], Settings]
"""A function that returns the settings with further values, as if given by the user."""


def read_table(file: Path, chosen: Sequence[str]) -> Mapping[str, Values]:
    """Return the names of nights in a table with the values of options.

    The identifiers of options are such as `jax_version`. Without chosen names, all
    nights are returned.

    Raises:
        FormatError: the file cannot be read, is not a table, or has an unknown option.
        RequestError: a chosen row does not exist.
    """
    known = {*option_names()} - {*OUTPUT_OPTIONS, "out"}
    hint = "See ci_build/release/continuous.toml."
    tables = read_toml(file, dict[str, dict[str, Any]], schema=_SCHEMA, hint=hint)
    rows = {}
    for name, table in tables.items():
        if not name.replace("-", "").isalnum():
            raise FormatError(
                f"{file}: {name!r} is not a name.", hint="Use letters, digits and -."
            )
        rows[name] = option_values(file, table, known)
    if missing := [name for name in chosen if name not in rows]:
        raise RequestError(
            f"{file} has no row {', '.join(missing)}.",
            hint=f"Give one of {', '.join(rows)}.",
        )
    return {name: row for name, row in rows.items() if not chosen or name in chosen}


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


@frozen
class NightOptions:
    """Options of the nights of one command line.

    Attributes:
        make: function that returns the settings of given options.
        after: options of the build by identifier; None for options that were not given.
        release: options of the way to users, without the name of a row.
    """

    make: MakeSettings
    index: str
    redo: bool
    after: Mapping[str, object]
    release: ReleaseOptions

    def request(
        self,
        name: str,
        row: Values,
        reporter: Reporter,
        runner: HostRunner,
        connect: Connect,
    ) -> NightRequest:
        """Return the request of a night; the command line overrides its row of a table.

        Args:
            name: name of the row; empty without a table.

        Raises:
            RequestError: options contradict each other, or the targets belong to another
                index.
            InputError: a repository or an index does not answer.
        """
        options = _below(self.release, name)
        wheel_set = None
        if ReleaseStep.BUILD in options.steps:
            settings = newest_settings(
                self._settings(name, row),
                self.index,
                options.channel,
                reporter,
                runner,
            )
            wheel_set = wheel_set_request(settings, reporter, runner, connect)
            wheel_set = with_cluster(
                wheel_set, options.cluster, other_use=ReleaseStep.GATES in options.steps
            )
            check_index(wheel_set.build, self.index)
        return NightRequest(
            name=name,
            index=self.index,
            wheel_set=wheel_set,
            options=options,
            redo=self.redo,
        )

    def _settings(self, name: str, row: Values) -> MakeSettings:
        """Return a function that adds values to the options of a row."""
        # A row overrides variables and the project file, but not the command line.
        values = {**row}
        values |= {
            key: value for key, value in self.after.items() if not name or is_typed(key)
        }
        if name:
            values["out"] = str(Path(self.make(self.after).text("out"), name))
        return lambda more: self.make({**values, **more})


def _below(options: ReleaseOptions, name: str) -> ReleaseOptions:
    """Return options whose bucket and public URL end in the name of a row."""
    if not name:
        return options
    location = options.bucket
    parameters = ""
    if is_url(location):
        location, mark, words = location.partition("?")
        parameters = mark + words
    url = options.public_url
    if url not in ("", NO_URL):
        url = f"{url.rstrip('/')}/{name}"
    bucket = f"{location.rstrip('/')}/{name}{parameters}"
    ledger = replace(options.ledger, heads=heads_folder(bucket))
    return replace(options, bucket=bucket, public_url=url, ledger=ledger)
