"""The ROCm that a set is built with: downloaded, inspected, compared and locked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import InputError, RequestError
from core.process import Runner, without_credentials
from core.report import Reporter

if TYPE_CHECKING:
    from ci_build.rocm.packages import Packages
    from ci_build.rocm.request import Asked, GfxNames, RocmStorage
    from ci_build.rocm.source import PackageFinder, Rocm
    from core.http.client import Connect


def verify(lock: Path, storage: RocmStorage, reporter: Reporter, runner: Runner, connect: Connect) -> Rocm:
    """Fetch what is locked if it is not there, and compare all of it, every file, with the lock.

    Raises:
        InputError: the tree was changed; RequestError: it is not what is locked.
    """
    from ci_build.rocm.lock import load_lock
    from ci_build.rocm.request import Asked
    from core.unpack.contents import differences

    if (known := load_lock(lock)) is None:
        raise RequestError(f"There is no {lock}.", hint="A build with --therock-path makes it.")
    asked = Asked(source=known.source, version=known.version, lock=lock, locked=True)
    rocm = obtain_rocm(asked, storage, reporter, runner, connect)
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


def obtain_rocm(asked: Asked, storage: RocmStorage, reporter: Reporter, runner: Runner, connect: Connect) -> Rocm:
    """The tree, fetched if it has to be; what people should know about it is told."""
    from ci_build.rocm.source import obtain
    from ci_build.rocm.store import RocmStore

    with reporter.group(f"ROCm: {asked.source.rpartition('/')[2] or without_credentials(asked.source)}"):
        store = RocmStore(storage.cache / "rocm", progress=reporter, keep_tarballs=storage.keep_tarballs)
        finder = _finder(storage.cache, reporter, runner)
        rocm = obtain(asked, gfx_names(), store, connect(), progress=reporter, find_packages=finder)
    for note in rocm.notes:
        reporter.warning(note)
    reporter.line(f"ROCm {rocm.facts.version}, {rocm.facts.compiler}, in {rocm.root}; {rocm.trust}")
    from core import cache

    for entry in cache.collect(storage.cache, limit=storage.limit, kinds=cache.ROCM):
        reporter.line(f"removed {entry.name} from the cache, which was over its limit")
    return rocm


def _finder(cache_root: Path, reporter: Reporter, runner: Runner) -> PackageFinder:
    def find(asked: Asked, locked: Mapping[str, str]) -> Packages:
        from ci_build.rocm.package_index import fetch_packages, kept_in
        from core.layouts import family_packages

        return fetch_packages(
            asked,
            locked,
            families=family_packages(asked.targets or None),
            runner=runner,
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


def check_families(families: Sequence[str]) -> None:
    """Refuse what no build of a listing can be for.

    Raises:
        RequestError: one that is no family.
    """
    from ci_build.rocm.listing import MULTIARCH

    known = gfx_names().families
    if unknown := [family for family in families if family not in (*known, MULTIARCH)]:
        raise RequestError(f"--family: {', '.join(unknown)} is no family.", hint="See `ci_build targets`.")
