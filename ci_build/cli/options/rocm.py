"""Options that name a ROCm, and the selection of a ROCm by `--therock` and `--locked`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ci_build.cli.options.settings import Setting, Settings, split_list
from ci_build.rocm.listing import choose, list_builds, parse_name
from ci_build.rocm.lock import load_lock
from ci_build.rocm.request import SCHEME, RocmSource, RocmStorage, check_families, file_name, is_index
from core.errors import RequestError
from core.process import HostRunner
from core.report import Reporter
from core.targets import load_table
from core.units import parse_size

if TYPE_CHECKING:  # At run time, it would load requests.
    from core.http.client import Connect

_NAMES_A_ROCM = ("therock_path", "therock", "therock_index_url")
_NEED_A_SOURCE = ("therock_sha256", "rocm_full", "no_tarball_cache", "cache_limit")
_NEED_A_LISTING = ("family", "therock_listing")


def rocm_storage(settings: Settings) -> RocmStorage:
    """Return the storage of ROCm trees, with its size limit.

    Raises:
        RequestError: the limit is not a size.
    """
    return RocmStorage(
        cache=settings.cache_dir, keep_tarballs=not settings.flag("no_tarball_cache"), limit=_limit(settings)
    )


def _limit(settings: Settings) -> int:
    setting = settings.get("cache_limit")
    return parse_size(str(setting.value), setting.origin)


def find_rocm(settings: Settings, reporter: Reporter, runner: HostRunner, connect: Connect) -> RocmSource | None:
    """Return the ROCm that the options name, or None if they name no ROCm.

    The ROCm is not downloaded. `--therock` downloads the listing of builds, and `--therock-index-url` without a version
    queries the index.

    Raises:
        RequestError: options contradict each other or have no effect.
    """
    _refuse_contradictions(settings)
    _limit(settings)
    path, choice = settings.get("therock_path").value, settings.get("therock").value
    lock, locked = Path(settings.text("rocm_lock")), settings.flag("locked")
    index, version = settings.text("therock_index_url"), settings.text("therock_version")
    if index:
        from core.http.client import canonical  # Start-up time: it loads requests.

        path = SCHEME + canonical(index)
        if not version and not settings.given("rocm_version") and not locked:
            from ci_build.rocm.package_index import newest_version  # Start-up time: it loads isal.

            version = newest_version(index, runner)
            reporter.line(f"--therock-index-url: the newest ROCm of the index is {version}")
    elif choice:
        path = _choose(settings, reporter, connect, str(choice))
    elif locked and not path:
        path = _locked_source(lock)
    if not path:
        return None
    return RocmSource(
        source=str(path),
        sha256=settings.text("therock_sha256"),
        require_checksum=settings.flag("require_checksum"),
        full=settings.flag("rocm_full"),
        lock=lock,
        locked=locked,
        index_version=version,
    )


def rocm_defaults(rocm: RocmSource) -> Mapping[str, Setting]:
    """Return the ROCm version and the targets that the ROCm's name or lock implies."""
    found: dict[str, Setting] = {}
    if rocm.index_version:
        found["rocm_version"] = Setting(value=rocm.index_version, origin="--therock-version")
    elif rocm.locked and is_index(rocm.source) and rocm.lock is not None and (known := load_lock(rocm.lock)):
        found["rocm_version"] = Setting(value=known.version, origin=str(rocm.lock))
    name = file_name(rocm.source)
    if parts := parse_name(name):
        family, version = parts
        found["rocm_version"] = Setting(value=version, origin=f"the name {name}")
        if family in load_table().families:
            found["targets"] = Setting(value=family, origin=f"the name {name}")
    return found


def rocm_problems(settings: Settings) -> list[str]:
    """Return the contradictions between a build job and other options that name a ROCm."""
    problems = []
    if settings.given("rocm_build_num") and not settings.given("rocm_build_job"):
        problems.append("--rocm-build-num needs --rocm-build-job.")
    if settings.given("rocm_build_job") or settings.given("rocm_build_num"):
        problems += settings.objections(_NAMES_A_ROCM, "excludes --rocm-build-job and --rocm-build-num.")
    return problems


def build_job_defaults(settings: Settings) -> Mapping[str, Setting]:
    """Return the tarball URL of an internal build job as `therock_path`; empty if no job was named."""
    url = rocm_build_url(settings)
    return {"therock_path": Setting(value=url, origin="--rocm-build-url")} if url else {}


def rocm_build_url(settings: Settings) -> str:
    """Return the tarball URL of an internal build job; empty without `--rocm-build-job`.

    Raises:
        RequestError: no URL template was given, or it has an unknown field.
    """
    if not settings.given("rocm_build_job"):
        return ""
    template = settings.text("rocm_build_url")
    job = settings.text("rocm_build_job")
    if not template:
        raise RequestError(
            f"No URL template was given for --rocm-build-job: {job}.",
            hint="Give --rocm-build-url, or CI_BUILD_ROCM_BUILD_URL, such as https://host/{job}/{num}/rocm.tar.gz.",
        )
    fields = {
        "job": job,
        "num": str(settings.get("rocm_build_num").value or "lastSuccessfulBuild"),
        "version": settings.text("rocm_version"),
    }
    try:
        return template.format_map(fields)
    except (KeyError, ValueError, IndexError) as error:
        raise RequestError(
            f"--rocm-build-url cannot be filled in: {template!r}.", hint="Use the fields {job}, {num} and {version}."
        ) from error


def _refuse_contradictions(settings: Settings) -> None:
    problems = []
    named = [name for name in _NAMES_A_ROCM if settings.given(name)]
    if len(named) > 1:
        options = " and ".join("--" + name.replace("_", "-") for name in named)
        problems.append(f"{options} {'both' if len(named) == 2 else 'all'} name a ROCm.")
    problems += [f"--{name.replace('_', '-')} is empty." for name in named if not settings.get(name).value]
    if settings.given("therock_version") and not settings.given("therock_index_url"):
        problems.append("--therock-version has no effect without --therock-index-url.")
    if settings.given("therock_sha256") and settings.given("therock_index_url"):
        problems.append("--therock-sha256 applies to a tarball only.")
    if settings.given("no_tarball_cache") and settings.given("therock_index_url"):
        problems.append("--no-tarball-cache has no effect with --therock-index-url: packages are not tarballs.")
    if settings.given("therock") and not settings.given("family"):
        problems.append("--therock needs --family.")
    # The value may come from an internal build job, whose URL is a default of --therock-path.
    source = settings.get("therock_path").value or settings.given("therock") or settings.given("therock_index_url")
    if source and settings.given("rocm_manifest"):
        problems.append("--rocm-manifest has no effect with a whole ROCm, whose manifest is generated.")
    if not source:
        text = "has no effect without --therock-path, --therock or --therock-index-url."
        problems += settings.objections(_NEED_A_SOURCE, text)
    if not settings.given("therock"):
        problems += settings.objections(_NEED_A_LISTING, "has no effect without --therock.")
    if not source and not settings.flag("locked"):
        text = "has no effect without --therock-path, --therock, --therock-index-url or --locked."
        # The environment may require checksums for a whole machine, also for builds without a ROCm.
        unused = ("rocm_lock", *filter(settings.typed, ("require_checksum",)))
        problems += settings.objections(unused, text)
    if problems:
        raise RequestError(" ".join(problems), hint="See `ci_build dist_wheels --help`.")


def _choose(settings: Settings, reporter: Reporter, connect: Connect, choice: str) -> str:
    families = split_list(settings.text("family"))
    if not families:
        raise RequestError("--family is empty.", hint="Give families that `ci_build targets` lists.")
    check_families(families)
    builds = list_builds(connect(), settings.text("therock_listing"))
    build = choose(builds, choice, families)
    reporter.line(f"--therock={choice}: {build.name}")
    return build.url


def _locked_source(lock: Path) -> str:
    if (known := load_lock(lock)) is None:
        raise RequestError(
            f"--locked needs {lock}, which does not exist.", hint="Run once without --locked to create it."
        )
    return known.source
