"""Options that name a ROCm, and the selection of a ROCm by `--therock` and `--locked`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ci_build.cli.options.settings import HELP_HINT, Setting, Settings
from ci_build.rocm.lock import load_lock
from ci_build.rocm.rocm_request import (
    DnfRepository,
    PipIndex,
    RocmRequest,
    RocmSource,
    RocmStorage,
    TarballFile,
    TarballUrl,
    check_families,
    dnf_repository,
    parse_source,
)
from ci_build.rocm.set_lock import locked_source
from ci_build.rocm.tarball_listing import (
    MULTIARCH,
    check_age,
    choose,
    list_builds,
)
from core.errors import RequestError
from core.model import GfxTarget, RocmVersion
from core.process import HostRunner, without_credentials
from core.report import Reporter
from core.rocm_servers import naming_successor, package_server
from core.targets import MULTI_ARCH, family_of, load_table, split_words
from core.units import parse_size

if TYPE_CHECKING:  # At run time, it would load requests.
    from core.http.client import Connect

_NAMES_A_ROCM = ("therock_path", "therock", "therock_index_url")
SELECTS_A_ROCM = (*_NAMES_A_ROCM, "rocm_version", "rocm_build_job", "locked")
"""Options that select the ROCm of a build from source."""
_RELEASE_OF_DNF = re.compile(r"7\.[0-8](?:\.[0-9]+)?")
"""Releases that wheels are built for, and that AMD built before TheRock."""
_NEED_A_SOURCE = ("therock_sha256", "cache_limit")
_NEED_A_LISTING = ("family", "therock_listing")


def rocm_storage(settings: Settings) -> RocmStorage:
    """Return the storage of ROCm trees, with its size limit.

    Raises:
        RequestError: the limit is not a size.
    """
    return RocmStorage(cache=settings.cache_dir, limit=_limit(settings))


def _limit(settings: Settings) -> int:
    setting = settings.get("cache_limit")
    return parse_size(str(setting.value), setting.origin)


def find_rocm(
    settings: Settings,
    reporter: Reporter,
    runner: HostRunner,
    connect: Connect,
    *,
    use_amd: bool = False,
    targets: tuple[GfxTarget, ...] = (),
) -> RocmRequest | None:
    """Return the ROCm that the options name, or None if they name no ROCm.

    The ROCm is not downloaded. `--therock` downloads the listing of builds, and
    `--therock-index-url` without a version queries the index.

    Args:
        use_amd: whether `--rocm-version` alone names AMD's own packages.
        targets: targets of the build, from which `--therock` without `--family`, and
            `--rocm-version` alone, derive the family.

    Raises:
        RequestError: options contradict each other or have no effect.
    """
    amd = _amds_packages(settings, targets) if use_amd else None
    _refuse_contradictions(settings, amd=amd is not None)
    _limit(settings)
    path = _path(settings)
    choice = settings.get("therock").value
    lock = Path(settings.text("rocm_lock"))
    locked = settings.flag("locked")
    pinned = load_lock(lock) if locked else None
    if locked and pinned is None:
        raise RequestError(
            f"--locked needs {lock}, which does not exist.",
            hint="Run once without --locked to create it.",
        )
    source: RocmSource
    if settings.text("therock_index_url"):
        source = _index(settings, reporter, runner)
    elif choice:
        url = _choose(settings, reporter, connect, str(choice), targets)
        source = parse_source(url)
    elif path:
        source = parse_source(path)
    elif pinned is not None:
        source = locked_source(pinned, lock)
    elif amd is not None:
        source = amd
        version = settings.text("rocm_version")
        reporter.line(f"--rocm-version={version}: AMD's packages, {source}")
    else:
        return None
    return RocmRequest(
        source=source,
        sha256=settings.text("therock_sha256"),
        require_checksum=settings.flag("require_checksum"),
        lock=lock,
        pinned=pinned or load_lock(lock),
        locked=locked,
    )


def _index(settings: Settings, reporter: Reporter, runner: HostRunner) -> PipIndex:
    """Return an index; its version is empty if another option or the lock has it."""
    from core.http.client import canonical  # Start-up time: it loads requests.

    index = settings.text("therock_index_url")
    version = ""
    if not index.lower().startswith(("http://", "https://")):
        raise RequestError(
            "--therock-index-url is not an http or https URL:"
            f" {without_credentials(index)!r}.",
            hint="Give the URL of an index.",
        )
    if not settings.given("rocm_version") and not settings.flag("locked"):
        # Start-up time: it loads isal.
        from ci_build.rocm.package_index import newest_version

        with naming_successor(index):
            version = newest_version(index, runner)
            reporter.line(
                f"--therock-index-url: the newest ROCm of the index is {version}"
            )
            hint = f"Give --rocm-version={version} to use it, or another"
            check_age(version, _today(), f"{hint} --therock-index-url.")
    return PipIndex(url=canonical(index), version=version)


def _amds_packages(
    settings: Settings, targets: tuple[GfxTarget, ...]
) -> PipIndex | DnfRepository | None:
    """Return AMD's packages of `--rocm-version` alone.

    None if other options name a ROCm, or for versions that AMD does not publish.

    Raises:
        RequestError: AMD has one index for each family of such versions, and the
            targets are of several families.
    """
    version = settings.text("rocm_version") if settings.given("rocm_version") else ""
    named = settings.get("therock_path").value or any(
        settings.given(name) for name in _NAMES_A_ROCM
    )
    if named or settings.flag("locked") or not version:
        return None
    if _RELEASE_OF_DNF.fullmatch(version):
        return dnf_repository(version)
    server = package_server(str(RocmVersion(text=version)))
    if server is None:
        return None
    if not server.families:
        return PipIndex(url=server.url)
    family = family_of(targets)
    if family == MULTI_ARCH:
        raise RequestError(
            f"--rocm-version={version}: AMD has an index of this ROCm for each family,"
            " and no family has all --targets.",
            hint="Give the targets of one family, or a ROCm since 7.13.",
        )
    return PipIndex(url=f"{server.url}{family}/")


def rocm_defaults(settings: Settings, rocm: RocmRequest) -> Mapping[str, Setting]:
    """Return the ROCm version and targets implied by its name, lock or `--family`."""
    found: dict[str, Setting] = {}
    match rocm.source:
        case PipIndex(version=version) if version:
            found["rocm_version"] = Setting(value=version, origin="--therock-index-url")
        case PipIndex() | DnfRepository() if rocm.locked and rocm.pinned is not None:
            pinned = rocm.pinned.version
            found["rocm_version"] = Setting(value=pinned, origin=str(rocm.lock))
        case TarballUrl() | TarballFile() as tarball if tarball.version:
            origin = f"the name {tarball.name}"
            found["rocm_version"] = Setting(value=tarball.version, origin=origin)
            if tarball.family in load_table().families:
                found["targets"] = Setting(value=tarball.family, origin=origin)
    # A multi-arch tarball may serve the families; its name has none.
    if (
        settings.given("therock")
        and MULTIARCH not in (families := split_words(settings.text("family")))
        and families
    ):
        found["targets"] = Setting(value=",".join(families), origin="--family")
    return found


def rocm_problems(settings: Settings) -> list[str]:
    """Return the contradictions of the options that name an internal build job."""
    template = "{job}" in str(settings.get("therock_path").value)
    if not settings.given("rocm_build_job"):
        fields = ("rocm_build_num", *(["therock_path"] if template else []))
        return settings.objections(fields, "needs --rocm-build-job.")
    if template:
        return []
    example = "https://host/{job}/{num}/rocm.tar.gz"
    return [f"--rocm-build-job needs --therock-path with {{job}}, such as {example}."]


def _path(settings: Settings) -> str:
    """Return --therock-path with the fields of a build job; empty if it was not given.

    Raises:
        RequestError: it has an unknown field.
    """
    path = str(settings.get("therock_path").value or "")
    if not settings.given("rocm_build_job"):
        return path
    fields = {
        "job": settings.text("rocm_build_job"),
        "num": str(settings.get("rocm_build_num").value or "lastSuccessfulBuild"),
        "version": settings.text("rocm_version"),
    }
    try:
        return path.format_map(fields)
    except (KeyError, ValueError, IndexError) as error:
        raise RequestError(
            f"--therock-path cannot be filled in: {path!r}.",
            hint="Use the fields {job}, {num} and {version}.",
        ) from error


def _refuse_contradictions(settings: Settings, *, amd: bool) -> None:
    problems = []
    named = [name for name in _NAMES_A_ROCM if settings.given(name)]
    if len(named) > 1:
        options = " and ".join("--" + name.replace("_", "-") for name in named)
        problems.append(
            f"{options} {'both' if len(named) == 2 else 'all'} name a ROCm."
        )
    problems += [
        f"--{name.replace('_', '-')} is empty."
        for name in named
        if not settings.get(name).value
    ]
    if settings.given("therock_index_url") or amd:
        problems += settings.objections(
            ("therock_sha256",), "applies to a tarball only."
        )
    families = split_words(settings.text("family"))
    if settings.given("therock") and not (families or settings.given("targets")):
        problems.append("--therock needs --family or --targets.")
    source = (
        settings.get("therock_path").value
        or amd
        or any(map(settings.given, _NAMES_A_ROCM))
    )
    if source and settings.given("rocm_manifest"):
        problems.append(
            "--rocm-manifest has no effect with a whole ROCm, whose manifest is"
            " generated."
        )
    if not source:
        text = "has no effect without --therock-path, --therock or --therock-index-url."
        problems += settings.objections(_NEED_A_SOURCE, text)
    if not settings.given("therock"):
        problems += settings.objections(
            _NEED_A_LISTING, "has no effect without --therock."
        )
    if not source and not settings.flag("locked"):
        text = (
            "has no effect without --therock-path, --therock, --therock-index-url or"
            " --locked."
        )
        # The environment may require checksums for a whole machine, also for builds
        # without a ROCm.
        unused = ("rocm_lock", *filter(settings.typed, ("require_checksum",)))
        problems += settings.objections(unused, text)
    if problems:
        raise RequestError(" ".join(problems), hint=HELP_HINT)


def _choose(
    settings: Settings,
    reporter: Reporter,
    connect: Connect,
    choice: str,
    targets: tuple[GfxTarget, ...],
) -> str:
    families = tuple(split_words(settings.text("family")))
    if not families:
        family = family_of(targets)
        families = (MULTIARCH if family == MULTI_ARCH else family,)
    check_families(families)
    listing = settings.text("therock_listing")
    with naming_successor(listing):
        builds = list_builds(connect(), listing)
        build = choose(builds, choice, families, _today())
    reporter.line(f"--therock={choice}: {build.name}")
    return build.url


def _today() -> date:
    return datetime.now(UTC).date()
