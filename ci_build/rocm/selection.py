"""Options -> the ROCm that a set is made with: found, fetched, looked at, compared, locked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci_build.cli import options
from core.errors import InputError, RequestError
from core.model import BuildRequest, Payload
from core.process import HostRunner, without_credentials
from core.report import Reporter
from core.units import parse_size

if TYPE_CHECKING:
    from ci_build.rocm.listing import Build
    from ci_build.rocm.packages import Packages
    from ci_build.rocm.request import Asked, GfxNames
    from ci_build.rocm.source import PackageFinder, Rocm
    from core.http.client import Client

_NEED_A_SOURCE = ("therock_sha256", "rocm_full", "no_tarball_cache", "cache_limit")
_NEED_A_LISTING = ("family", "therock_listing")


def client(reporter: Reporter) -> Client:
    """Connections as the environment wants them; what has to be tried again is told."""
    from core.http.client import Client

    return Client(proxy=options.proxy_of, tell=reporter.warning)


def listing(settings: options.Settings, connections: Client, *tables: str) -> tuple[Build, ...]:
    """What the nightly listing offers, newest first."""
    from ci_build.rocm.listing import list_builds

    return list_builds(connections, str(settings.get("therock_listing", *tables).value))


def find_source(settings: options.Settings, reporter: Reporter, *tables: str) -> Asked | None:
    """Which ROCm was asked for; a listing is read where one has to choose, and nothing else is fetched.

    Raises:
        RequestError: options that contradict each other, or have no use.
    """
    path, wish = settings.get("therock_path").value, settings.get("therock").value
    _refuse_contradictions(settings)
    _limit(settings, *tables)
    lock = Path(str(settings.get("rocm_lock", *tables).value))
    locked = settings.flag("locked")
    index = str(settings.get("therock_index_url").value or "")
    version = str(settings.get("therock_version").value or "")
    if index:
        from ci_build.rocm.request import SCHEME
        from core.http.client import canonical

        path = SCHEME + canonical(index)
        if not version and not settings.given("rocm_version") and not locked:
            version = _newest(index, reporter)
    elif wish:
        path = _chosen(settings, reporter, str(wish), *tables)
    elif locked and not path:
        path = _locked_source(lock)
    if not path:
        return None
    from ci_build.rocm.request import Asked

    return Asked(
        source=str(path),
        sha256=str(settings.get("therock_sha256").value or ""),
        full=settings.flag("rocm_full"),
        lock=lock,
        locked=locked,
        index_version=version,
    )


def _limit(settings: options.Settings, *tables: str) -> int:
    """Bytes that the ROCms in the cache may have; asked for before anything is fetched, since it may be no size."""
    setting = settings.get("cache_limit", *tables)
    return parse_size(str(setting.value), setting.origin)


def _newest(index: str, reporter: Reporter) -> str:
    from ci_build.rocm.package_index import newest_version

    version = newest_version(index, HostRunner(options.environment()))
    reporter.line(f"--therock-index-url: the newest ROCm there is {version}")
    return version


def suggest(settings: options.Settings, asked: Asked) -> None:
    """Let a tarball's name, or a version of packages, stand in for options of a build from source."""
    from ci_build.rocm.listing import parse_name
    from ci_build.rocm.lock import load_lock
    from ci_build.rocm.request import file_name, is_index

    if asked.index_version:
        settings.suggest("rocm_version", asked.index_version, origin="--therock-version")
    elif asked.locked and is_index(asked.source) and asked.lock is not None and (known := load_lock(asked.lock)):
        settings.suggest("rocm_version", known.version, origin=str(asked.lock))
    if told := parse_name(file_name(asked.source)):
        family, version = told
        settings.suggest("rocm_version", version, origin=f"the name {file_name(asked.source)}")
        if family in gfx_names().families:
            settings.suggest("targets", family, origin=f"the name {file_name(asked.source)}")


def for_request(asked: Asked, request: BuildRequest) -> Asked:
    """The same with the version that it has to be, and the targets that it has to serve where something is built."""
    targets = request.targets or () if request.payload is Payload.SOURCE else ()
    return replace(asked, version=str(request.rocm_version), targets=targets)


def verify(settings: options.Settings, reporter: Reporter, lock: Path, *tables: str) -> Rocm:
    """Fetch what is locked if it is not there, and compare all of it, every file, with the lock.

    Raises:
        InputError: the tree was changed; RequestError: it is not what is locked.
    """
    from ci_build.rocm.lock import load_lock
    from ci_build.rocm.request import Asked
    from core.treefiles import differences

    if (known := load_lock(lock)) is None:
        raise RequestError(f"There is no {lock}.", hint="A build with --therock-path makes it.")
    asked = Asked(source=known.source, version=known.version, lock=lock, locked=True)
    rocm = obtain_rocm(settings, reporter, asked, *tables)
    if rocm.contents is not None and (changed := differences(rocm.root, rocm.contents)):
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise InputError(
            f"{rocm.root} was changed since it was unpacked: {'; '.join(changed[:5])}{more}.",
            hint=f"Remove {rocm.root.parent}; the next run makes it anew.",
        )
    return rocm


def tell_plan(asked: Asked, reporter: Reporter) -> None:
    """Say, in a dry run, what would be fetched."""
    from ci_build.rocm.request import is_index, is_url

    source = without_credentials(asked.source)
    if not (is_url(source) or is_index(source) or Path(source).exists()):
        reporter.warning(f"{source} is not there; the build will ask for it.")
    reporter.line(f"would fetch what is missing of {source}, verify it and lock it in {asked.lock}")


def obtain_rocm(settings: options.Settings, reporter: Reporter, asked: Asked, *tables: str) -> Rocm:
    """The tree, fetched if it has to be; what people should know about it is told."""
    from ci_build.rocm.source import obtain
    from ci_build.rocm.store import RocmStore

    root = options.cache_dir(settings)
    keep = not settings.flag("no_tarball_cache")
    with reporter.group(f"ROCm: {asked.source.rpartition('/')[2] or without_credentials(asked.source)}"):
        store = RocmStore(root / "rocm", progress=reporter, keep_tarballs=keep)
        connections = client(reporter)
        try:
            finder = _finder(root, reporter)
            rocm = obtain(asked, gfx_names(), store, connections, progress=reporter, find_packages=finder)
        finally:
            connections.close()
    for note in rocm.notes:
        reporter.warning(note)
    reporter.line(f"ROCm {rocm.facts.version}, {rocm.facts.compiler}, in {rocm.root}; {rocm.trust}")
    from core import cache

    removed = cache.collect(root, limit=_limit(settings, *tables), kinds=cache.ROCM)
    for entry in removed:
        reporter.line(f"removed {entry.name} from the cache, which was over its limit")
    return rocm


def _finder(cache_root: Path, reporter: Reporter) -> PackageFinder:
    def find(asked: Asked, locked: Mapping[str, str]) -> Packages:
        from ci_build.rocm.package_index import fetch_packages, kept_in
        from core.layouts import family_packages

        return fetch_packages(
            asked,
            locked,
            families=family_packages(asked.targets or None),
            runner=HostRunner(options.environment()),
            store=kept_in(cache_root),
            progress=reporter,
        )

    return find


def gfx_names() -> GfxNames:
    """What the gfx table says, as far as a ROCm is compared with it."""
    from ci_build.rocm.request import GfxNames
    from core import targets

    table = targets.load_table()
    processors = [name for name, row in table.targets.items() if row.covers == (name,)]
    return GfxNames(processors=processors, families=table.families, covers=targets.covers())


def _refuse_contradictions(settings: options.Settings) -> None:
    problems = []
    named = [name for name in ("therock_path", "therock", "therock_index_url") if settings.given(name)]
    if len(named) > 1:
        words = " and ".join("--" + name.replace("_", "-") for name in named)
        problems.append(f"{words} {'both' if len(named) == 2 else 'all'} name a ROCm.")
    problems += [f"--{name.replace('_', '-')} is empty." for name in named if not settings.get(name).value]
    if settings.given("therock_version") and not settings.given("therock_index_url"):
        problems.append("--therock-version has no use without --therock-index-url.")
    if settings.given("therock_sha256") and settings.given("therock_index_url"):
        problems.append("--therock-sha256 is of a tarball.")
    if settings.given("no_tarball_cache") and settings.given("therock_index_url"):
        problems.append("--no-tarball-cache has no use with --therock-index-url: pip fetches packages before all else.")
    if settings.given("therock") and not settings.given("family"):
        problems.append("--therock needs --family.")
    # An internal build job stands in for a path.
    source = settings.get("therock_path").value or settings.given("therock") or settings.given("therock_index_url")
    if source and settings.given("rocm_manifest"):
        problems.append("--rocm-manifest has no use beside a whole ROCm, whose manifest is made.")
    needs = [(name, "--therock-path, --therock or --therock-index-url") for name in _NEED_A_SOURCE if not source]
    needs += [(name, "--therock") for name in _NEED_A_LISTING if not settings.given("therock")]
    if not source and not settings.flag("locked"):
        needs.append(("rocm_lock", "--therock-path, --therock, --therock-index-url or --locked"))
    problems += [
        f"{settings.get(name).origin} has no use without {what}." for name, what in needs if settings.given(name)
    ]
    if problems:
        raise RequestError(" ".join(problems), hint="See `ci_build dist_wheels --help`.")


def check_families(families: Sequence[str]) -> None:
    """Refuse what no build of a listing can be for.

    Raises:
        RequestError: one that is no family.
    """
    from ci_build.rocm.listing import MULTIARCH

    known = gfx_names().families
    if unknown := [family for family in families if family not in (*known, MULTIARCH)]:
        raise RequestError(f"--family: {', '.join(unknown)} is no family.", hint="See `ci_build targets`.")


def _chosen(settings: options.Settings, reporter: Reporter, wish: str, *tables: str) -> str:
    from ci_build.rocm.listing import choose

    families = [word.strip() for word in str(settings.get("family").value).split(",") if word.strip()]
    if not families:
        raise RequestError("--family names none.", hint="See `ci_build targets`.")
    check_families(families)
    connections = client(reporter)
    try:
        build = choose(listing(settings, connections, *tables), wish, families)
    finally:
        connections.close()
    reporter.line(f"--therock={wish}: {build.name}")
    return build.url


def _locked_source(lock: Path) -> str:
    from ci_build.rocm.lock import load_lock

    if (known := load_lock(lock)) is None:
        raise RequestError(f"--locked, and there is no {lock}.", hint="Make it once without --locked.")
    return known.source
